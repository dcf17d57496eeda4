"""Formulas as kernels: their text, and what it computes, on the host in place of a GPU (tests/optim/host_kernels.py)."""

import itertools
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
import torch

from gradc import native
from gradc.bits import same_bits
from gradc.optim import formulas, kernels
from tests.optim import host_kernels

SETTINGS = {
    **{"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.3, "momentum": 0.9, "dampening": 0.1},
    **{"alpha": 0.9, "rho": 0.9, "lr_decay": 0.1, "momentum_decay": 4e-3, "mu_product": 0.7},
}
BOOLS = (False, True)
FORMULAS = [
    *(formulas.adam(*choices) for choices in itertools.product(BOOLS, repeat=4)),
    *(formulas.foreach_nadam(*choices) for choices in itertools.product(BOOLS, repeat=3)),
    *(formulas.foreach_radam(*choices, True, True, False) for choices in itertools.product(BOOLS)),
    *(formulas.foreach_sgd(True, *choices) for choices in itertools.product(BOOLS, repeat=3)),
    formulas.foreach_sgd(False, False, False, False),
    *(formulas.foreach_first_sgd(*choices) for choices in itertools.product(BOOLS, repeat=3)),
    *(formulas.rmsprop(*choices, True, True) for choices in itertools.product(BOOLS, repeat=2)),
    *(function(*choices) for function in (formulas.foreach_adagrad, formulas.adadelta, formulas.adamax)
      for choices in itertools.product(BOOLS, repeat=2)),
]  # fmt: skip
SOME = [
    formulas.adam(True, True, True, False),
    formulas.foreach_sgd(True, True, False, False),
    formulas.rmsprop(True, True, False, True),
    formulas.foreach_nadam(False, True, True),
    formulas.foreach_radam(True, False, True, True),
    formulas.adamax(False, False),
    formulas.foreach_adagrad(False, True),
    formulas.adadelta(False, True),
]


def test_the_text_of_adamw():
    assert (
        kernels.source_of(formulas.adam(False, False, True, True), torch.float32, 16)
        == pathlib.Path(__file__).with_name("adamw.cu").read_text()
    )


def fused(a, b, c):
    """a * b + c, rounded once: a product of two float32 has 48 bits, and a long double 64."""
    return (np.longdouble(a) * np.longdouble(b) + np.longdouble(c)).astype(np.float32)


def lerp(a, b, number):
    return fused(number, b - a, a) if abs(number) < 0.5 else fused(-(b - a), np.float32(1) - number, b)


OPS = {
    "neg": lambda a: -a,
    "abs": np.abs,
    "reciprocal": lambda a: np.float32(1) / a,
    "sqrt": np.sqrt,
    "mul": lambda a, number: a * number,
    "add_number": lambda a, number: a + number,
    "div": lambda a, number: a / number,
    "mul_values": lambda a, b: a * b,
    "div_values": lambda a, b: a / b,
    "maximum": np.maximum,
    "add": lambda a, b, number: fused(number, b, a),
    "lerp": lerp,
    "addcmul": lambda a, b, c, number: fused(b, c, a) if number == 1 else fused(number, b * c, a),
    "addcdiv": lambda a, b, c, number: fused(number, b / c, a),
}


def op_by_op(formula, operands, numbers):
    """The formula, each op on the whole of one parameter; what it gives is stored."""
    dtype = operands[0].dtype
    values, numbers = {name: operand.float().numpy() for name, operand in zip(formula.operands, operands)}, iter(numbers)
    for call in formula.calls:
        extra = [] if call.number is None else [np.float32(next(numbers))]
        with np.errstate(all="ignore"):
            found = OPS[call.op](*(values[name] for name in call.values), *extra)
        values[call.out] = torch.from_numpy(np.asarray(found)).to(dtype).float().numpy()
    return [torch.from_numpy(values[name]).to(dtype) for name in formula.operands]


def rows(formula, sizes, dtype=torch.float32):
    """For each parameter its operands. State is positive, as torch's is where a root is taken."""
    generator = torch.Generator().manual_seed(0)
    values = lambda place, size: (
        torch.randn(size, generator=generator).abs() if place > 1 else torch.randn(size, generator=generator)
    )
    return [[values(place, size).to(dtype) for place in range(len(formula.operands))] for size in sizes]


def update_of(formula, most_rows, dtype=torch.float32):
    kernel = host_kernels.kernel(kernels.source_of(formula, dtype, most_rows), torch.device("cpu"))
    num_numbers = sum(call.number is not None for call in formula.calls)
    return native.extension.KernelUpdate(
        formula.num_writes, kernel, dtype, num_numbers, most_rows, kernels.ELEMENTS, kernels.THREADS
    )


@pytest.mark.parametrize(("formula", "dtype"), [*((formula, torch.float32) for formula in SOME), (SOME[0], torch.bfloat16)])
def test_a_group_is_updated_as_op_by_op(formula, dtype):
    """Around the ends of blocks; an empty parameter; more rows than a launch takes; other numbers for some of them."""
    given = rows(formula, (1, 0, 255, 256, 1023, 1024, 1025, 4097, 3), dtype)
    numbers = [formula.numbers(SETTINGS, step) for step in (3.0, 7.0)]
    number_of = [place % 2 for place in range(len(given))]
    want = [op_by_op(formula, row, numbers[number]) for row, number in zip(given, number_of)]
    update = update_of(formula, 3, dtype)
    versions = [[operand._version for operand in row] for row in given]
    columns = [list(column) for column in zip(*given)]
    assert update.why_not(columns) == ""
    update.run(columns, numbers, number_of, [], [])
    for row, expected in zip(given, want, strict=True):
        assert same_bits(row, expected)
        assert [operand._version - version for operand, version in zip(row, versions.pop(0))] == formula.num_writes


def test_rows_that_share_memory_are_refused():
    formula = formulas.foreach_sgd(False, False, False, False)
    update, (a, b) = update_of(formula, 3), rows(formula, (8, 8))
    assert update.why_not([[a[0], b[0]], [a[1], a[1]]]) == ""  # a gradient is only read
    shared = "parameter, gradient and state that share memory"
    assert update.why_not([[a[0], a[0]], [a[1], b[1]]]) == shared
    assert update.why_not([[a[0][:4], b[0][:4]], [a[0][2:6], b[1][:4]]]) == shared
    assert (
        update.why_not([[a[0].view(2, 4)], [a[1].view(4, 2).t()]]) == "gradient that is laid out otherwise than its parameter"
    )
    assert update.why_not([[a[0].double()], [a[1].double()]]) == "parameters of several dtypes"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_every_formula_compiles_for_a_gpu(tmp_path):
    """As NVRTC does it, with CUDA's own functions."""
    file = tmp_path / "all.cu"
    texts = [kernels.source_of(formula, dtype, 16) for formula in FORMULAS[::4] for dtype in kernels.DTYPES]
    named = [text.replace('extern "C" ', "") for text in texts]
    file.write_text("\n".join(f"namespace n{i} {{\n{text}}}\n" for i, text in enumerate(named)))
    command = [
        "nvcc",
        "--cubin",
        "-arch=sm_90",
        "-std=c++17",
        "--fmad=false",
        "-Werror=all-warnings",
        "-o",
        str(tmp_path / "all.cubin"),
    ]
    done = subprocess.run([*command, str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
