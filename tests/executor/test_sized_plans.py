"""Sizes that come back run as a static plan, made of how tensors lay in a run with them: with eager's bits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sympy
import torch
from torch import Tensor, nn

import gradc
from gradc import executor, native
from gradc.bits import same_bits
from gradc.executor.core.plan import plan_spec
from gradc.ir.at_sizes import at_sizes, size_symbols
from gradc.ir.floats import bits_of
from gradc.ir.program import Program
from gradc.ir.values import Instruction, Ref, Slot, Sym, TensorMeta
from tests.oracle import check
from tests.threads import in_threads

pytestmark = pytest.mark.skipif(not native.is_built(), reason="plans are native")
aten = torch.ops.aten
MADE = "plans for sizes that came back"
s0, s1 = sympy.Symbol("s0", integer=True), sympy.Symbol("s1", integer=True)


@pytest.fixture(autouse=True)
def nothing_counted() -> Iterator[None]:
    gradc.counters.clear()
    native.extension.set_runs_before_sized_plans(2)
    yield
    native.extension.set_runs_before_sized_plans(2)


def num_made() -> int:
    return gradc.counters["executor"][MADE]


def rows(name: str, columns: int = 4) -> Slot:
    return Slot(name, TensorMeta(torch.float32, (Sym(s0), columns), (columns, 1), 0, torch.device("cpu")))


def scaled_sum() -> Program:
    """Of x with s0 rows, and the bits of a number: the mean of tanh(x) * number over the rows; x in 4 rows; s0 + 1."""
    slots = (
        rows("x"),
        Slot("bits"),
        rows("tanh"),
        rows("scaled"),
        Slot("sum", TensorMeta(torch.float32, (4,), (1,), 0, torch.device("cpu"))),
        Slot("mean", TensorMeta(torch.float32, (4,), (1,), 0, torch.device("cpu"))),
        Slot("turned", TensorMeta(torch.float32, (4, Sym(s0)), (Sym(s0), 1), 0, torch.device("cpu"))),
    )
    calls = (
        Instruction(aten.tanh.default, (Ref(0),), {}, (2,)),
        Instruction(aten.mul.Tensor, (Ref(2), Sym(sympy.Function("float_of")(s1), float)), {}, (3,)),
        Instruction(aten.sum.dim_IntList, (Ref(3), [0]), {}, (4,)),
        Instruction(aten.div.Tensor, (Ref(4), Sym(s0)), {}, (5,)),
        Instruction(aten.view.default, (Ref(0), [4, Sym(s0)]), {}, (6,)),
    )
    return Program("scaled", slots, (0, 1), {}, calls, (Ref(5), Ref(6), Sym(s0 + 1)), {s0: ("size", 0, 0), s1: ("int", 1, 0)})


def expected(x: Tensor, number: float) -> list[object]:
    return [(x.tanh() * number).sum(0) / len(x), x.view(4, -1), len(x) + 1]


def test_sizes_that_come_for_the_third_time_get_a_plan_and_a_number_may_change() -> None:
    plan = executor.lower(scaled_sum())
    for turn in range(6):
        for size in (2, 5, 7):
            x, number = torch.randn(size, 4), 0.5 + turn
            assert same_bits(plan([x, bits_of(number)]), expected(x, number))
        assert num_made() == (3 if turn >= 2 else 0)


def test_strides_that_are_other_than_in_the_run_that_was_seen_are_seen() -> None:
    native.extension.set_runs_before_sized_plans(0)
    plan = executor.lower(
        Program(
            "t",
            (rows("x"), rows("y")),
            (0,),
            {},
            (Instruction(aten.exp.default, (Ref(0),), {}, (1,)),),
            (Ref(1),),
            {s0: ("size", 0, 0)},
        )
    )
    for x in (
        torch.randn(3, 4),
        torch.randn(4, 3).t(),
        torch.randn(3, 8)[:, ::2],
        torch.randn(1, 4).expand(3, 4),
        torch.randn(3, 4),
    ):
        (got,) = plan([x])
        assert same_bits(got, x.exp()) and got.stride() == x.exp().stride()
    assert num_made() == 1


@pytest.mark.parametrize("size", [0, 1])
def test_no_and_one_row(size: int) -> None:
    native.extension.set_runs_before_sized_plans(0)
    plan = executor.lower(scaled_sum())
    for _ in range(3):
        x = torch.randn(size, 4)
        got, wanted = plan([x, bits_of(2.0)]), expected(x, 2.0)
        assert same_bits(got, wanted) and got[1].stride() == wanted[1].stride()


def test_what_is_known_of_sizes_becomes_numbers_and_what_is_not_stays() -> None:
    program = scaled_sum()
    assert size_symbols(program) == (s0,)
    layouts = [
        ((3, 4), (4, 1), 0),
        None,
        ((3, 4), (4, 1), 0),
        ((3, 4), (4, 1), 0),
        ((4,), (1,), 0),
        ((4,), (1,), 0),
        ((4, 3), (3, 1), 0),
    ]
    found = at_sizes(program, [3], layouts)
    assert [sym.expr.free_symbols for sym in found.syms] == [{s1}, {s0}]  # a number that is read each time, and an output
    assert found.instructions[3].args[1] == 3 and found.instructions[4].args[1] == [4, 3]
    assert plan_spec(found).is_static and not plan_spec(program).is_static


def test_a_program_that_does_not_know_all_its_symbols_gets_no_plan() -> None:
    program = Program(
        "unknown", (rows("x"), rows("y")), (0,), {}, (Instruction(aten.exp.default, (Ref(0),), {}, (1,)),), (Ref(1),)
    )
    assert size_symbols(program) == ()


def test_floats_that_change_leave_a_plan_static() -> None:
    meta = TensorMeta(torch.float32, (3,), (1,), 0, torch.device("cpu"))
    call = Instruction(aten.mul.Tensor, (Ref(0), Sym(sympy.Function("float_of")(s1), float)), {}, (2,))
    program = Program(
        "scaled", (Slot("x", meta), Slot("bits"), Slot("y", meta)), (0, 1), {}, (call,), (Ref(2),), {s1: ("int", 1, 0)}
    )
    assert plan_spec(program).is_static and plan_spec(program).size_symbols == ()
    plan = executor.lower(program)
    for number in (0.5, -0.0, 3.0, 0.5):
        x = torch.randn(3)
        assert same_bits(plan([x, bits_of(number)]), [x * number])


def test_an_error_in_the_run_that_is_seen_leaves_no_plan() -> None:
    native.extension.set_runs_before_sized_plans(0)
    call = Instruction(aten.index_select.default, (Ref(0), 0, Ref(1)), {}, (2,))
    indices = Slot("indices", TensorMeta(torch.int64, (2,), (1,), 0, torch.device("cpu")))
    picked = Slot("picked", TensorMeta(torch.float32, (2, 4), (4, 1), 0, torch.device("cpu")))
    plan = executor.lower(Program("picked", (rows("x"), indices, picked), (0, 1), {}, (call,), (Ref(2),), {s0: ("size", 0, 0)}))
    x = torch.randn(3, 4)
    with pytest.raises(IndexError, match="out of range"):
        plan([x, torch.tensor([0, 9])])
    for _ in range(3):
        assert same_bits(plan([x, torch.tensor([0, 2])]), [x[[0, 2]]])
    assert num_made() == 0


def test_threads_that_meet_the_same_sizes_make_one_plan() -> None:
    native.extension.set_runs_before_sized_plans(0)
    plan, x = executor.lower(scaled_sum()), torch.randn(6, 4)

    def run() -> bool:
        return all(same_bits(plan([x, bits_of(1.5)]), expected(x, 1.5)) for _ in range(50))

    assert all(in_threads(4, run)) and num_made() == 1


def test_a_training_over_sizes_that_come_back() -> None:
    counted: list[int] = []

    def step(compile: object) -> list[object]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1))
        compiled, optimizer, seen = compile(model), torch.optim.AdamW(model.parameters()), []  # type: ignore[operator]
        for size in (3, 5, 7, 5, 7, 3, 5, 7, 5, 7, 9, 5, 7):
            x = torch.randn(size, 4)
            optimizer.zero_grad()
            loss = (compiled(x) * x[:, :1]).square().mean()
            loss.backward()
            optimizer.step()
            seen.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
        counted.append(num_made())
        return seen

    check(step)
    assert max(counted) >= 2
