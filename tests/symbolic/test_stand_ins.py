"""Fake tensors take the place of walked ones: other sizes, but memory shared as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gradc import native
from gradc.capture.recording import Boundary, Expected
from gradc.errors import UnsupportedError
from gradc.symbolic.stand_ins import _same_order, returned, stand_ins
from gradc.torch_private.fakes import FakeTensorMode


def walked(loss: torch.Tensor) -> Any:
    extension = native.extension
    return extension.Walk([loss], [torch.ones_like(loss)], False, (), True)


def layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.stride()


def test_the_same_numbers_give_the_same_layouts() -> None:
    x = torch.ones(3, 4, requires_grad=True)
    walk = walked((x.exp().t() * torch.ones(4, 3, dtype=torch.float64)).sum())
    with FakeTensorMode():
        fakes = stand_ins(walk, walk.numbers)
    assert list(map(layout, fakes)) == list(map(layout, walk.tensors))


@pytest.mark.parametrize("first, second", [(2, 4), (4, 2), (3, 3)])
def test_views_of_one_memory_stay_as_far_apart(first: int, second: int) -> None:
    base = torch.arange(12.0).requires_grad_().clone()
    walk = walked((base[first : first + 6] * base[second : second + 6]).sum())
    with FakeTensorMode():
        fakes = stand_ins(walk, walk.numbers)
    pairs = list(zip(walk.tensors, fakes, strict=True))
    shared = [(real, fake) for real, fake in pairs if real.untyped_storage()._cdata == base.untyped_storage()._cdata]
    offsets = [real.storage_offset() - fake.storage_offset() for real, fake in shared]
    assert len(shared) >= 1 and len(set(offsets)) == 1
    assert len({fake.untyped_storage()._cdata for _, fake in shared}) == 1
    assert min(fake.storage_offset() for _, fake in shared) == 0


def test_lazy_conjugates_are_refused() -> None:
    x = torch.ones(3, dtype=torch.complex64, requires_grad=True)
    walk = walked((x.exp() * torch.ones(3, dtype=torch.complex64).conj()).abs().sum())
    assert any(tensor.is_conj() for tensor in walk.tensors)
    with FakeTensorMode(), pytest.raises(UnsupportedError, match="lazy conjugation"):
        stand_ins(walk, walk.numbers)


def test_strides_keep_their_order_in_memory() -> None:
    assert _same_order((2, 3), (1, 2), (4, 5)) == [1, 4]
    assert _same_order((2, 3), (3, 1), (4, 5)) == [5, 1]
    assert _same_order((2, 3), (0, 1), (4, 5)) == [0, 1]  # expanded
    assert _same_order((1, 8), (1, 1), (1, 8)) == [1, 1]  # a transposed column
    assert _same_order((5, 8), (24, 1), (7, 8)) == [24, 1]  # a third of the columns
    with pytest.raises(UnsupportedError, match="not dense"):
        _same_order((2, 3), (9, 1), (2, 5))  # rows apart by what was 9 when they had 3 columns


def test_what_a_live_node_returns_has_the_sizes_that_are_wanted() -> None:
    x = torch.ones(3, 4, requires_grad=True)
    walk = walked(x.exp().sum())
    (node,) = (number for number in range(walk.num_nodes) if walk.name(number) == "SumBackward0")
    boundary = Boundary(node, 0, (0,), (1,), (Expected(b"head", (3, 4, 4, 1), torch.float32),))
    with FakeTensorMode():
        outputs, expected = returned(walk, boundary, walk.numbers)
    assert [output is not None and layout(output) for output in outputs] == [layout(x)]
    assert expected == boundary.expected
    undefined = Boundary(node, 0, (0,), (-1,), (Expected(b"", (), None),))
    assert returned(walk, undefined, walk.numbers) == ([None], undefined.expected)
