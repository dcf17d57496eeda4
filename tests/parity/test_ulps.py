"""Ulps: 1 from a number to the next, at any magnitude, across zero, in every floating dtype."""

import pytest
import torch

from gradc.parity.ulps import distances, histogram, is_measured

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("number", [1.0, -1.0, 1e30, 1e-40, 0.0])
def test_the_next_number_is_one_ulp_away(dtype, number):
    a = torch.full((3,), number, dtype=dtype)
    for towards in (INF, -INF):
        assert distances(a, torch.nextafter(a, torch.full_like(a, towards))).tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    eps = torch.finfo(dtype).eps
    assert distances(torch.tensor([1.0, 1.0], dtype=dtype), torch.tensor([1 + eps, 1 + 4 * eps], dtype=dtype)).tolist() == [
        1,
        4,
    ]


def test_zeros_and_nans_are_alike_and_infinities_are_beyond():
    a = torch.tensor([0.0, NAN, INF, INF, NAN, 1.0])
    b = torch.tensor([-0.0, -NAN, INF, 1.0, 1.0, 1.0])
    beyond = torch.iinfo(torch.int64).max
    assert distances(a, b).tolist() == [0, 0, 0, beyond, beyond, 0]


def test_the_largest_distance_there_is_does_not_overflow():
    most = torch.finfo(torch.float64).max
    assert distances(torch.tensor([most], dtype=torch.float64), torch.tensor([-most], dtype=torch.float64)).item() > 2**62


def test_the_histogram_as_text():
    a = torch.ones(8)
    b = a.clone()
    b.view(torch.int32)[1:5] += torch.tensor([1, 1, 3, 2000], dtype=torch.int32)
    found = histogram(a, b)
    assert found.largest == 2000 and found.to_dict() == {"0": 4, "1": 2, "3-4": 1, "> 1024": 1}
    lines = str(found).splitlines()
    assert lines[0] == "     0 ulp  4  " + 32 * "#" and lines[1] == "     1 ulp  2  " + 16 * "#"


def test_what_has_no_ulps():
    a = torch.ones(2)
    others = (a.double(), a[:1], a.long(), torch.eye(2).to_sparse(), None)
    assert is_measured(a, a) and is_measured(a + 0j, a + 0j)
    assert not any(is_measured(a, other) for other in others)
