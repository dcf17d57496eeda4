"""Iterated calls (iterated.h): ATen's loops over iterators that are set up once. Layouts, dtypes, special numbers, threads."""

import concurrent.futures
from collections.abc import Callable

import pytest
import torch

from gradc import executor
from gradc.bits import same_bits
from gradc.native import extension
from tests.executor.agree import capture, check_agree

aten = torch.ops.aten
OPS = sorted(extension.iterated_ops()) if extension else []
SPECIAL = [0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-42, -1e-42, 1e-310, 88.8, -104.0, 1e30, 0.5, -1.0]
NUMBERS = {
    "aten::threshold_backward": [(0,), (0.3,)],
    "aten::pow.Tensor_Scalar": [(2,), (3,), (0.5,), (-1,), (0,), (1,), (2.5,)],
    "aten::add.Tensor": [(), (0.3,)],
}

pytestmark = pytest.mark.skipif(extension is None, reason="these calls are the extension's")


def overload(name: str):
    packet, _, which = name.removeprefix("aten::").partition(".")
    return getattr(getattr(aten, packet), which or "default")


def functions(name: str) -> list[Callable[..., torch.Tensor]]:
    """The op as a function of its tensors, for some of its numbers."""
    return [_function(overload(name), numbers) for numbers in NUMBERS.get(name, [()])]


def _function(op, numbers: tuple[float, ...]):
    def function(*tensors):
        left, right = iter(tensors), iter([*numbers, *[0.7] * 3])
        give = {"Tensor": lambda: next(left), "number": lambda: next(right), "bool": lambda: True}
        given = {
            argument: give[str(argument.type)]() for argument in op._schema.arguments if numbers or not argument.kwarg_only
        }
        by_name = {argument.name: value for argument, value in given.items() if argument.kwarg_only}
        return op(*[value for argument, value in given.items() if not argument.kwarg_only], **by_name)

    return function


def num_tensors(name: str) -> int:
    return sum(str(argument.type) == "Tensor" for argument in overload(name)._schema.arguments)


def values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Random numbers, and what is special among them."""
    made = torch.randn(shape, dtype=dtype) * 3
    flat = made.view(-1)
    flat[: len(SPECIAL)] = torch.tensor(SPECIAL, dtype=dtype)[: flat.numel()]
    return made[torch.randperm(len(made))] if made.dim() else made


def layouts(dtype: torch.dtype, count: int) -> list[list[torch.Tensor]]:
    def alike(lay=lambda x: x, shape=(9, 40)):
        return [lay(values(shape, dtype)) for _ in range(count)]

    made = [alike(shape=shape) for shape in [(), (1,), (7,), (16,), (33,), (3, 5, 4), (2050,), (8, 1)]]
    made += [alike(lay) for lay in (torch.t, lambda x: x[:, 3:20], lambda x: x[::2], lambda x: x[:, ::3], lambda x: x[1:2].t())]
    made += [alike(lambda x: x.unflatten(1, (5, 8)).transpose(0, 2))]
    if count > 1:
        rest = alike()[2:]
        made += [[values((9, 40), dtype), values(shape, dtype), *rest] for shape in [(40,), (9, 1), (), (1,), (1, 40)]]
        made += [[values((1,), dtype).expand(9, 40), values((9, 40), dtype).t().contiguous().t(), *rest]]
        made += [[values((40,), dtype), values((9, 40), dtype), *rest], [values((9, 1), dtype), values((1, 40), dtype), *rest]]
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_iterated(name, dtype):
    for function in functions(name):
        for tensors in layouts(dtype, num_tensors(name)):
            check_agree(function, tensors)


@pytest.mark.parametrize("name", OPS)
def test_such_a_call_goes_straight_to_memory(name):
    plan = executor.lower(capture(functions(name)[0], [torch.ones(4, 3)[:, :2] for _ in range(num_tensors(name))]))
    assert plan.num_direct == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["sigmoid_", "tanh_", "exp_", "add_", "mul_", "div_", "addcmul_", "lerp_", "sqrt_"])
def test_in_place_on_parts(name, dtype):
    def function(x, *others):
        made = x * 1.5
        arguments = others[: {"add_": 1, "mul_": 1, "div_": 1, "addcmul_": 2, "lerp_": 1}.get(name, 0)]
        for part in (slice(0, 7), slice(20, 36)):
            getattr(made[:, part], name)(*(other[:, part] for other in arguments), *[0.3] * (name == "lerp_"))
        return made

    check_agree(function, [values((9, 40), dtype) for _ in range(3)])


def test_in_place_on_an_input_that_others_share():
    def function(x):
        x[:, :3].sigmoid_()
        return x + 1, x[:, 1:2].exp_()

    check_agree(function, [torch.randn(5, 7)])
    with pytest.raises(RuntimeError, match="single memory location"):
        check_agree(lambda x: x.expand(5, 7).sigmoid_(), [torch.randn(1, 7)])


@pytest.mark.parametrize(
    "name", ["aten::tanh", "aten::silu_backward", "aten::sigmoid", "aten::log", "aten::addcdiv", "aten::pow.Tensor_Scalar"]
)
def test_on_two_threads(name):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for shape in [(70_001,), (300, 301)]:
            check_agree(functions(name)[0], [torch.rand(shape) + 0.1 for _ in range(num_tensors(name))])
    finally:
        torch.set_num_threads(before)


def test_one_plan_in_several_threads():
    def function(x):
        return x.tanh().sigmoid().exp().log1p().erf()

    run = executor.lower(capture(function, [torch.randn(64, 300)[:, :299]]))
    inputs = [torch.randn(64, 300)[:, :299] for _ in range(8)]
    expected = [function(x) for x in inputs]

    def check(number: int) -> bool:
        return all(same_bits(run([inputs[number]])[0], expected[number]) for _ in range(50))

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert all(threads.map(check, range(8)))


def test_other_sizes_than_captured():
    run = executor.lower(capture(torch.tanh, [torch.randn(6, 5)[:, :4]]))
    for x in (torch.randn(6, 5)[:, :4], torch.randn(3, 9), torch.randn(6, 5)[:, 1:], torch.randn(4, 6).t()):
        assert same_bits(run([x])[0], torch.tanh(x))
