"""Ops whose kernels for tensors without data are asked straight away give what a fake mode gives."""

import pytest
import torch

from gradc.ir.ops import PLAIN_META, PLAIN_META_OF_CONTIGUOUS
from gradc.torch_private.fakes import FakeTensorMode, call_on_meta

aten = torch.ops.aten
A, ODD = (4, 3), (1, 3)
CALLS = [
    (aten.mm.default, A, (3, 2)), (aten.mm.default, (1, 1), (1, 1)), (aten.mm.default, (0, 3), (3, 2)),
    (aten.addmm.default, (2,), A, (3, 2)), (aten.bmm.default, (2, *A), (2, 3, 2)), (aten.t.default, A), (aten.t.default, (3,)),
    (aten.transpose.int, (2, *A), 0, -1), (aten.permute.default, (2, *A), [2, 0, 1]), (aten.expand.default, ODD, [5, 3]),
    (aten.unsqueeze.default, A, 1), (aten.slice.Tensor, A, 0, 1, 3), (aten.slice.Tensor, A, 1, 0, 3, 2),
    (aten.select.int, A, 0, 1), (aten.detach.default, A), (aten.alias.default, A), (aten.view.default, A, [2, -1]),
    (aten.tanh.default, A), (aten.tanh_backward.default, A, A), (aten.sigmoid.default, A),
    (aten.sigmoid_backward.default, A, A), (aten.threshold_backward.default, A, A, 0), (aten.sum.dim_IntList, A, [0], True),
    (aten.sum.dim_IntList, A, [1]), (aten.add.Tensor, A, A), (aten.sub.Tensor, ODD, ODD), (aten.mul.Tensor, (), ()),
    (aten._unsafe_view.default, A, [2, -1]), (aten.squeeze.dim, (2, 1, 3), 1), (aten.squeeze.dim, A, 0),
    (aten.squeeze.dim, (), 0), (aten.slice_backward.default, (2, 3), [4, 3], 0, 1, 3, 1),
    (aten.slice_backward.default, (4, 2), [4, 3], -1, 0, 9, 2),
    (aten.select_backward.default, (3,), [4, 3], 0, -1), (aten.select_backward.default, (4,), [4, 3], 1, 2),
]  # fmt: skip
ONLY_CONTIGUOUS = PLAIN_META_OF_CONTIGUOUS.ops | {aten.view.default, aten._unsafe_view.default}
CASES = [
    (op, args, is_transposed)
    for op, *args in CALLS
    for is_transposed in (False, True)
    if not (is_transposed and op in ONLY_CONTIGUOUS)
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("op, args, is_transposed", CASES, ids=str)
def test_as_a_fake_mode(op, args, is_transposed, dtype):
    mode = FakeTensorMode()

    def tensor(shape):
        made = torch.empty(shape[::-1] if is_transposed else shape, dtype=dtype)
        return made.permute(tuple(reversed(range(len(shape))))) if is_transposed else made

    with mode, torch.no_grad():
        given = [tensor(arg) if isinstance(arg, tuple) else arg for arg in args]
        expected, first, result = op(*given), call_on_meta(op, given), call_on_meta(op, given)  # the second by its known layout
    assert first is not None and first.stride() == expected.stride()
    assert result is not None and type(result) is type(expected) and result.fake_mode is mode
    for name in ("shape", "dtype", "device", "layout", "requires_grad"):
        assert getattr(result, name) == getattr(expected, name), name
    assert (result.stride(), result.storage_offset()) == (expected.stride(), expected.storage_offset())
    storages = [value.untyped_storage()._cdata for value in given if isinstance(value, torch.Tensor)]
    assert (result.untyped_storage()._cdata in storages) == (expected.untyped_storage()._cdata in storages)


@pytest.mark.parametrize("op", sorted(PLAIN_META_OF_CONTIGUOUS.ops, key=str))
def test_other_layouts_are_those_of_the_fake_mode(op):
    with FakeTensorMode(), torch.no_grad():
        straight, turned, row = torch.empty(4, 3), torch.empty(3, 4).t(), torch.empty(3, dtype=torch.float64)
        for args in ([turned, turned], [turned, straight], [straight, row], [turned[:, :2], 0.5], [row, 2]):
            for made in (call_on_meta(op, args, False), call_on_meta(op, args, False)):
                expected = op(*args)
                assert made is not None
                assert (made.shape, made.stride(), made.dtype) == (expected.shape, expected.stride(), expected.dtype)


def test_a_layout_is_known_for_its_dtype_and_the_kind_of_a_number():
    with FakeTensorMode():
        whole, real = torch.empty(3, dtype=torch.int64), torch.empty(3)
        made = [call_on_meta(aten.tanh.default, [value]) for value in (whole, real, whole)]
        assert [value.dtype for value in made if value is not None] == [torch.float32, torch.float32, torch.float32]
        made = [call_on_meta(aten.threshold_backward.default, [real, real, number]) for number in (0, 0.5, True)]
        assert all(value is not None and value.shape == (3,) for value in made)


def test_every_op_of_the_rows_is_called_here():
    assert {call[0] for call in CALLS} == PLAIN_META.ops | PLAIN_META_OF_CONTIGUOUS.ops


def test_what_is_unusual_is_left_to_the_fake_mode():
    with FakeTensorMode():
        assert call_on_meta(aten.mm.default, [torch.empty(2, 2), torch.empty(2, 2, device="meta")]) is None
    assert call_on_meta(aten.tanh.default, [torch.ones(2)]) is None
