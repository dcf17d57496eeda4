"""How a Program is printed, and that what is printed runs."""

import torch

from gradc.ambient import AutocastState
from gradc.bits import same_bits
from gradc.executor.core import interpret
from gradc.ir.program import Program
from gradc.ir.text import print_program
from tests.ir.build import recorded, with_call

BF16 = AutocastState((("cpu", torch.bfloat16),))


def layer(x, w, b):
    return torch.tanh(torch.addmm(b, x, w.t()))


def program() -> Program:
    return recorded(layer, torch.ones(4, 3), torch.ones(2, 3), torch.ones(2), names="xwb")


def test_a_layer():
    assert print_program(program()) == (
        """\
def program(args):
    x: 'f32[4, 3][3, 1]cpu' = args[0]  # x
    w: 'f32[2, 3][3, 1]cpu' = args[1]  # w
    b: 'f32[2][1]cpu' = args[2]  # b
    args.clear()
    t: 'f32[3, 2][1, 3]cpu' = torch.ops.aten.t.default(w);  del w
    addmm: 'f32[4, 2][2, 1]cpu' = torch.ops.aten.addmm.default(b, x, t);  del x, b, t
    tanh: 'f32[4, 2][2, 1]cpu' = torch.ops.aten.tanh.default(addmm);  del addmm
    return [tanh]
"""
    )


def test_places_lists_and_autocast():
    made = recorded(lambda x: x.sort(dim=-1)[1], torch.ones(2, 2))
    made = with_call(made, 0, where="File: model.py:3 in f, code: x.sort()", origin="SortBackward0", autocast=BF16)
    assert print_program(made) == (
        """\
def program(args):
    x: 'f32[2, 2][2, 1]cpu' = args[0]  # x
    args.clear()

    # SortBackward0 <- File: model.py:3 in f, code: x.sort()
    set_autocast(autocast_0)
    (sort, sort_1, ) = torch.ops.aten.sort.default(x);  del x, sort  # f32[2, 2][2, 1]cpu; i64[2, 2][2, 1]cpu
    return [sort_1]
"""
    )


def test_what_is_printed_runs():
    inputs = [torch.randn(4, 3), torch.randn(2, 3), torch.randn(2)]
    expected = layer(*inputs)
    (result,) = interpret.lower(program())(inputs)
    assert same_bits(result, expected)
    assert inputs == []  # emptied, so that values die where eager frees them
