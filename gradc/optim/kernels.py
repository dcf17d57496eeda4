"""Write an optimizer's formula as a CUDA kernel: all parameters of a group in one launch, each call of ATen's a statement.

    source_of: (formula, dtype, most_rows, ops) -> the text of ``update``, in C++ as NVRTC takes it

A block of threads works on ELEMENTS elements of one parameter. What it works on comes with the launch, by value: the formula's
numbers, and a row for each parameter (where its operands lie, their size, how many blocks are before it). Each op rounds as
ATen's kernel over lists of tensors does, once or as a fused multiply-add; nothing is contracted across ops (``--fmad=false``).
"""

from __future__ import annotations

import re

import torch

from gradc.optim.formulas import Call, Formula

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
    "lerp": "absolute(number) < Real(0.5) ? fused(number, minus(b, a), a) : fused(-minus(b, a), minus(1, number), b)",
    "addcmul": "number == 1 ? fused(b, c, a) : fused(number, multiply(b, c), a)",
    "addcdiv": "fused(number, divide(b, c), a)",
}

_ROUNDED = ("plus", "minus", "multiply", "divide", "root", "fused", "absolute")
_OF_DTYPE = {
    torch.float32: ("float", ("__fadd_rn", "__fsub_rn", "__fmul_rn", "__fdiv_rn", "__fsqrt_rn", "__fmaf_rn", "fabsf")),
    torch.float64: ("double", ("__dadd_rn", "__dsub_rn", "__dmul_rn", "__ddiv_rn", "__dsqrt_rn", "__fma_rn", "fabs")),
}
DTYPES = tuple(_OF_DTYPE)

_TEXT = """\
using Real = {real};

struct Row {{
  Real* operands[{num_operands}]; // {operands}
  long long size;
  unsigned first_block, unused;
}};

struct Arguments {{
  unsigned num_rows, unused;
  Real numbers[{num_numbers}];
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

extern "C" __global__ void {name}(const __grid_constant__ Arguments arguments) {{
  const Row& row = arguments.rows[row_of(arguments, blockIdx.x)];
{pointers}
  const long long begin = (long long)(blockIdx.x - row.first_block) * {elements} + threadIdx.x;
#pragma unroll
  for (int part = 0; part < {num_parts}; ++part) {{
    const long long i = begin + part * {threads};
    if (i < row.size) {{
{statements}
    }}
  }}
}}
"""


def source_of(formula: Formula, dtype: torch.dtype, most_rows: int, ops: dict[str, str] = ON_CUDA) -> str:
    """See the module's docstring. ``ops`` says how each op rounds."""
    real, intrinsics = _OF_DTYPE[dtype]
    num_numbers = sum(call.number is not None for call in formula.calls)
    return _TEXT.format(
        real=real,
        num_operands=len(formula.operands),
        operands=", ".join(formula.operands),
        num_numbers=max(num_numbers, 1),
        most_rows=most_rows,
        functions=_functions(
            dict.fromkeys(call.op for call in formula.calls), ops, dict(zip(_ROUNDED, intrinsics, strict=True))
        ),
        name=NAME,
        pointers="\n".join(_pointers(formula)),
        elements=ELEMENTS,
        threads=THREADS,
        num_parts=ELEMENTS // THREADS,
        statements="\n".join(f"      {statement}" for statement in _statements(formula)),
    )


def _functions(used: dict[str, None], ops: dict[str, str], intrinsics: dict[str, str]) -> str:
    texts = []
    for op in used:
        names = [name for name in ("a", "b", "c", "number") if re.search(rf"\b{name}\b", ops[op])]
        expression = re.sub(r"\b[a-z]+(?=\()", lambda found: intrinsics[found[0]], ops[op])
        parameters = ", ".join(f"Real {name}" for name in names)
        texts.append(f"__device__ inline Real {_function(op)}({parameters}) {{\n  return {expression};\n}}")
    return "\n".join(texts)


def _function(op: str) -> str:
    return f"{op}_op"


def _pointers(formula: Formula) -> list[str]:
    used = {name for call in formula.calls for name in (*call.values, call.out)}
    places = [(place, name) for place, name in enumerate(formula.operands) if name in used]
    return [f"  Real* const __restrict__ {name}s = row.operands[{place}];" for place, name in places]


def _statements(formula: Formula) -> list[str]:
    """Operands are read once, before all calls, and those that a call has written are written once, behind them."""
    known, numbers = set(formula.operands), iter(range(len(formula.calls)))
    written = dict.fromkeys(call.out for call in formula.calls if call.out in formula.operands)
    read = {name for call in formula.calls for name in call.values}
    lines = [f"Real {name} = {name}s[i];" for name in formula.operands if name in read]
    for call in formula.calls:
        lines.append(f"{'' if call.out in known else 'Real '}{call.out} = {_called(call, numbers)};")
        known.add(call.out)
    return lines + [f"{name}s[i] = {name};" for name in written]


def _called(call: Call, numbers: object) -> str:
    values = list(call.values)
    if call.number is not None:
        values.append(f"arguments.numbers[{next(numbers)}]")  # type: ignore[call-overload]
    return f"{_function(call.op)}({', '.join(values)})"
