"""What is the same bit for bit, and what is not: zeros, NaNs, dtypes, shapes, layouts, subclasses, numbers."""

from __future__ import annotations

import math
import pathlib
import re
import struct
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

from gradc.bits import same_bits

NAN = math.nan
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz]


def tensor(*numbers: complex, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(numbers).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_have_a_sign(dtype: torch.dtype) -> None:
    assert same_bits(tensor(-0.0, 1, dtype=dtype), tensor(-0.0, 1, dtype=dtype))
    assert not same_bits(tensor(-0.0, 1, dtype=dtype), tensor(0.0, 1, dtype=dtype))
    assert not same_bits(tensor(-0.0, NAN, dtype=dtype), tensor(0.0, NAN, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_parts_of_complex_numbers(dtype: torch.dtype) -> None:
    assert not same_bits(tensor(complex(1, -0.0), dtype=dtype), tensor(complex(1, 0.0), dtype=dtype))
    assert same_bits(tensor(complex(NAN, 1), dtype=dtype), -tensor(complex(NAN, -1), dtype=dtype))
    assert not same_bits(tensor(complex(NAN, 1), dtype=dtype), tensor(complex(NAN, 2), dtype=dtype))
    assert not same_bits(tensor(complex(NAN, 1), dtype=dtype), tensor(complex(1, NAN), dtype=dtype))
    assert not same_bits(tensor(complex(NAN, 0.0), dtype=dtype), tensor(complex(NAN, -0.0), dtype=dtype))


def test_all_nans_are_one() -> None:
    quiet, other = (torch.tensor([0, bits], dtype=torch.int32).view(torch.float32) for bits in (0x7FC00000, -0x3FFFF0))
    assert quiet[1].isnan() and other[1].isnan()
    assert same_bits(quiet, other) and not same_bits(quiet, tensor(0, 1)) and not same_bits(quiet, tensor(NAN, 0))


@pytest.mark.parametrize("dtype", FLOAT8)
def test_eight_bits(dtype: torch.dtype) -> None:
    assert same_bits(tensor(1, NAN, dtype=dtype), tensor(1, -NAN, dtype=dtype))
    assert not same_bits(tensor(1, NAN, dtype=dtype), tensor(2, NAN, dtype=dtype))


def test_last_bit() -> None:
    assert not same_bits(tensor(1.0), torch.nextafter(tensor(1.0), tensor(2.0)))
    assert not same_bits(torch.tensor([2**62]), torch.tensor([2**62 + 1]))
    assert not same_bits(torch.tensor([True]), torch.tensor([False]))


def test_dtype_and_shape() -> None:
    assert not same_bits(tensor(1), tensor(1, dtype=torch.float64))
    assert not same_bits(torch.ones(2, 3), torch.ones(3, 2))
    assert not same_bits(torch.ones(()), torch.ones(1))
    assert not same_bits(torch.empty(0, 2), torch.empty(0, 3)) and same_bits(torch.empty(0, 2), torch.empty(0, 2))


def test_the_way_bits_lie_in_memory_does_not_count() -> None:
    x = torch.randn(3, 4, dtype=torch.complex64)
    assert same_bits(x, x.t().contiguous().t()) and same_bits(x.conj(), x.conj().resolve_conj())
    assert same_bits(x.conj().imag, x.conj().imag.clone()) and same_bits(x[:1].expand(3, 4), x[:1].repeat(3, 1))
    assert same_bits(torch.nn.Parameter(x), x)


def layouts(values: Tensor) -> dict[str, Tensor]:
    """The same four numbers, a non-zero one among them, in every layout."""
    dense = torch.zeros(4, 4).diagonal_scatter(values)
    indices = torch.arange(4).expand(2, 4)
    crow = torch.arange(5)
    found = {"coo": torch.sparse_coo_tensor(indices, values, (4, 4))}
    found["nested"] = torch.nested.nested_tensor([values, values[:2]])
    found["csr"] = torch.sparse_csr_tensor(crow, indices[0], values, (4, 4))
    found["csc"] = torch.sparse_csc_tensor(crow, indices[0], values, (4, 4))
    found["jagged"] = torch.nested.nested_tensor([values, values[:2]], layout=torch.jagged)
    found["two"] = TwoTensor(dense, dense.clone())
    found["mkldnn"] = dense.to_mkldnn()
    return found


@pytest.mark.parametrize("layout", layouts(torch.ones(4)))
def test_layouts(layout: str) -> None:
    values = tensor(1, 0.0, NAN, 4)
    found = layouts(values)[layout]
    assert same_bits(found, layouts(values.clone())[layout])
    assert not same_bits(found, layouts(tensor(1, -0.0, NAN, 4))[layout])
    assert not same_bits(found, layouts(tensor(1, 0.0, NAN, 5))[layout])
    assert not same_bits(found, values) and not same_bits(values, found)


def test_parts_of_sparse_tensors() -> None:
    sparse = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (2,))
    other = torch.sparse_coo_tensor([[0, 0]], [2.0, 1.0], (2,))
    assert not same_bits(sparse, sparse.coalesce()) and not same_bits(sparse, other)


def test_quantized() -> None:
    def channels(scale: float) -> Tensor:
        zeros = torch.zeros(2, dtype=torch.long)
        return torch.quantize_per_channel(torch.ones(2, 1), torch.tensor([1.0, scale]), zeros, 0, torch.qint8)

    x, twice = (torch.quantize_per_tensor(torch.full((2,), 2 * scale), scale, 0, torch.qint8) for scale in (0.5, 1.0))
    assert same_bits(x, x.clone()) and same_bits(x.int_repr(), twice.int_repr()) and not same_bits(x, twice)
    assert same_bits(channels(0.5), channels(0.5)) and not same_bits(channels(0.5), channels(1.0))


OTHERS = [(0.0, -0.0), (1, 1.0), (1, True), (0j, complex(0, -0.0)), (1.0, NAN), ([1.0], (1.0,)), ([1.0], [1.0, 2.0]), (None, 0)]


@pytest.mark.parametrize("a, b", OTHERS)
def test_other_values(a: Any, b: Any) -> None:
    assert same_bits(a, a) and same_bits(b, b) and not same_bits(a, b) and not same_bits(b, a)


def test_nans_that_are_no_tensors() -> None:
    (other,) = struct.unpack("d", struct.pack("q", -1))
    assert same_bits(NAN, other) and same_bits([NAN, complex(NAN, 1)], [other, complex(other, 1)])


def test_inside_modes_and_graphs() -> None:
    x = torch.zeros(2, requires_grad=True)
    with torch.inference_mode():
        assert same_bits(x * 1, x) and not same_bits(x * 1, -x)
    with torch.autocast("cpu"):
        assert not same_bits(x.exp(), x)


def test_nobody_asks_otherwise() -> None:
    """torch.equal takes -0.0 for 0.0, and NaN for different from itself."""
    root = pathlib.Path(__file__).parent.parent
    files = [path for room in ("gradc", "tests", "benchmarks") for path in (root / room).rglob("*.py")]
    others = [path for path in files if re.search(r"torch\.equal\b[(,)]", path.read_text())]
    assert others == [root / "gradc/bits.py"]
