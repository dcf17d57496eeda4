"""Write an optimizer's formula as a CUDA kernel: all parameters of a group in one launch, each call of ATen's a statement.

    source_of: (formula, dtype, most_rows, ops) -> the text of ``update``, in C++ as NVRTC takes it

A block of threads works on ELEMENTS elements of one parameter, each thread on some that lie one behind the other. What it works
on comes with the launch, by value: the formula's numbers, and a row for each parameter (where its operands lie, their size, how
many blocks are before it). Each op rounds as ATen's kernel over lists of tensors does, once or as a fused multiply-add; nothing
is contracted across ops (``--fmad=false``).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

import torch

from gradc.optim.formulas import Formula

THREADS, ELEMENTS = 256, 1024
NAME = "update"

# Of the values a, b, c and a number, in terms of the functions in _ROUNDED, which round once.
ON_CUDA = {
    "neg": "-a",
    "abs": "absolute(a)",
    "reciprocal": "divide(1, a)",
    "sqrt": "root(a)",
    "mul": "multiply(a, number)",
    "add_number": "plus(a, number)",
    "div": "divide(a, number)",
    "mul_values": "multiply(a, b)",
    "div_values": "divide(a, b)",
    "maximum": "a != a || a > b ? a : b",
    "add": "fused(number, b, a)",
    "lerp": "absolute(number) < Number(0.5) ? fused(number, minus(b, a), a) : fused(-minus(b, a), minus(1, number), b)",
    "addcmul": "number == 1 ? fused(b, c, a) : fused(number, multiply(b, c), a)",
    "addcdiv": "fused(number, divide(b, c), a)",
}

_ROUNDED = ("plus", "minus", "multiply", "divide", "root", "fused", "absolute")
_FLOAT = ("__fadd_rn", "__fsub_rn", "__fmul_rn", "__fdiv_rn", "__fsqrt_rn", "__fmaf_rn", "fabsf")
_DOUBLE = ("__dadd_rn", "__dsub_rn", "__dmul_rn", "__ddiv_rn", "__dsqrt_rn", "__fma_rn", "fabs")
_BFLOAT16 = """\
// Half of a float. What an op computes in floats is rounded to the nearest one behind it, as where ATen stores it.
struct Real {
  unsigned short bits;

  Real() = default;
  __device__ Real(float value) {
    const unsigned word = __float_as_uint(value);
    bits = value != value ? 0x7fff : (word + 0x7fff + (word >> 16 & 1)) >> 16;
  }
  __device__ operator float() const {
    return __uint_as_float((unsigned)bits << 16);
  }
};
"""
_OF_DTYPE = {  # what is stored, what is computed with, and its functions
    torch.float32: ("using Real = float;\n", "float", _FLOAT),
    torch.float64: ("using Real = double;\n", "double", _DOUBLE),
    torch.bfloat16: (_BFLOAT16, "float", _FLOAT),
}
DTYPES = tuple(_OF_DTYPE)

_TEXT = """\
{stored}using Number = {number};

struct Row {{
  Real* operands[{num_operands}]; // {operands}
  long long size;
  unsigned first_block, unused;
}};

struct Arguments {{
  unsigned num_rows, unused;
  Number numbers[{num_numbers}];
  alignas(8) Row rows[{most_rows}];
}};

{functions}

// The last row that begins at this block or before.
__device__ unsigned row_of(const Arguments& arguments, unsigned block) {{
  unsigned low = 0, high = arguments.num_rows;
  while (high - low > 1) {{
    const unsigned middle = (low + high) / 2;
    (arguments.rows[middle].first_block <= block ? low : high) = middle;
  }}
  return low;
}}

__device__ inline void update_element(const Number* numbers, {parameters}) {{
{statements}
}}

struct alignas({alignment}) Pack {{
  Real elements[{per_thread}];
}};

extern "C" __global__ void {name}(const __grid_constant__ Arguments arguments) {{
  const Row& row = arguments.rows[row_of(arguments, blockIdx.x)];
{pointers}
  const long long begin = (long long)(blockIdx.x - row.first_block) * {elements} + threadIdx.x * {per_thread};
  const bool is_aligned = ({addresses}) % sizeof(Pack) == 0;
  if (is_aligned && begin + {per_thread} <= row.size) {{
{packs}
#pragma unroll
    for (int i = 0; i < {per_thread}; ++i) {{
      update_element(arguments.numbers, {packed});
    }}
{stores}
  }} else {{
    for (long long i = begin; i < begin + {per_thread} && i < row.size; ++i) {{
      update_element(arguments.numbers, {single});
    }}
  }}
}}
"""


def source_of(formula: Formula, dtype: torch.dtype, most_rows: int, ops: dict[str, str] = ON_CUDA) -> str:
    """See the module's docstring. ``ops`` says how each op rounds."""
    stored, number, intrinsics = _OF_DTYPE[dtype]
    used = [name for name in formula.operands if any(name in (*call.values, call.out) for call in formula.calls)]
    written = [name for name in used if any(name == call.out for call in formula.calls)]
    return _TEXT.format(
        stored=stored,
        number=number,
        num_operands=len(formula.operands),
        operands=", ".join(formula.operands),
        num_numbers=max(sum(call.number is not None for call in formula.calls), 1),
        most_rows=most_rows,
        functions=_functions(
            dict.fromkeys(call.op for call in formula.calls), ops, dict(zip(_ROUNDED, intrinsics, strict=True))
        ),
        parameters=", ".join(f"Real{'&' if name in written else ''} {name}" for name in used),
        statements=_lines(f"  {statement}" for statement in _statements(formula)),
        per_thread=ELEMENTS // THREADS,
        alignment=min(ELEMENTS // THREADS * dtype.itemsize, 16),
        name=NAME,
        pointers=_lines(f"  Real* const __restrict__ {name}s = row.operands[{formula.operands.index(name)}];" for name in used),
        elements=ELEMENTS,
        addresses=" | ".join(f"(unsigned long long){name}s" for name in used),
        packs=_lines(f"    Pack {name} = *(const Pack*)({name}s + begin);" for name in used),
        packed=", ".join(f"{name}.elements[i]" for name in used),
        stores=_lines(f"    *(Pack*)({name}s + begin) = {name};" for name in written),
        single=", ".join(f"{name}s[i]" for name in used),
    )


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _functions(used: dict[str, None], ops: dict[str, str], intrinsics: dict[str, str]) -> str:
    texts = []
    for op in used:
        names = [name for name in ("a", "b", "c", "number") if re.search(rf"\b{name}\b", ops[op])]
        expression = re.sub(r"\b[a-z]+(?=\()", lambda found: intrinsics[found[0]], ops[op])
        parameters = ", ".join(f"Number {name}" for name in names)
        texts.append(f"__device__ inline Real {op}_op({parameters}) {{\n  return {expression};\n}}")
    return _lines(texts)


def _statements(formula: Formula) -> Iterator[str]:
    known, numbers = set(formula.operands), itertools.count()
    for call in formula.calls:
        values = [*call.values, *([] if call.number is None else [f"numbers[{next(numbers)}]"])]
        yield f"{'' if call.out in known else 'Real '}{call.out} = {call.op}_op({', '.join(values)});"
        known.add(call.out)
