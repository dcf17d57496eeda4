"""``zero_grad`` of a compiled optimizer, and inside compiled functions, leaves what torch's own leaves, at the same moments."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import gradc
from gradc import native
from gradc.bits import same_bits
from tests.threads import in_threads

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))

Way = Callable[[optim.Optimizer], Callable[..., Any]]


def by_torch(optimizer: optim.Optimizer) -> Callable[..., Any]:
    return lambda *args, **kwargs: optimizer.zero_grad(*args, **kwargs)


def compiled_optimizer(optimizer: optim.Optimizer) -> Callable[..., Any]:
    return by_torch(gradc.compile(optimizer))


def inside_a_step(optimizer: optim.Optimizer) -> Callable[..., Any]:
    return gradc.compile(by_torch(optimizer))


def both(optimizer: optim.Optimizer) -> Callable[..., Any]:
    return gradc.compile(compiled_optimizer(optimizer))


WAYS = [compiled_optimizer, inside_a_step, both]


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    gradc.reset()
    yield
    gradc.reset()


@pytest.fixture
def no_python_of_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    def enter(self: Any) -> None:
        raise AssertionError("torch's own zero_grad")

    monkeypatch.setattr(torch.autograd.profiler.record_function, "__enter__", enter)


def with_gradients(num: int = 3, **settings: Any) -> tuple[list[nn.Parameter], optim.Optimizer]:
    params = [nn.Parameter(torch.full((2,), float(number))) for number in range(num)]
    optimizer = optim.SGD(params, lr=0.1, **settings)
    for param in params:
        param.grad = torch.ones(2)
    return params, optimizer


def plain(way: Way) -> Any:
    params, optimizer = with_gradients()
    clear, held = way(optimizer), params[1].grad
    seen = [clear(), [param.grad for param in params], held]
    clear()
    params[0].grad = torch.ones(2)
    return [*seen, clear(), [param.grad for param in params], optimizer.state_dict()["param_groups"]]


def groups_of_all_kinds(way: Way) -> Any:
    params, optimizer = with_gradients(4, foreach=True)
    optimizer.param_groups = [{"params": params[:1]}, {"params": tuple(params[1:2])}, {"params": []}, {"params": params[2:]}]
    for group in optimizer.param_groups:
        group |= optimizer.defaults
    way(optimizer)()
    return [param.grad for param in params]


def to_zeros(way: Way) -> Any:
    params, optimizer = with_gradients()
    (params[0].exp().sum() * params[1].sum()).backward(create_graph=True)
    held = [param.grad for param in params]
    way(optimizer)(set_to_none=False)
    return [held, [param.grad is own for param, own in zip(params, held, strict=True)], [own.requires_grad for own in held]]


def what_is_seen_as_gradients_die(way: Way) -> Any:
    params, optimizer = with_gradients()
    seen: list[Any] = []
    clear = way(optimizer)
    for number, param in enumerate(params):
        others = params[:number] + params[number + 1 :]  # its own is freed memory meanwhile, if torch clears it
        weakref.finalize(
            param.grad, lambda number, others: seen.append((number, [own.grad is None for own in others])), number, others
        )
    clear()
    return seen


def a_list_that_shrinks_meanwhile(way: Way) -> Any:
    params, optimizer = with_gradients()
    clear = way(optimizer)
    weakref.finalize(params[0].grad, lambda: optimizer.param_groups[0]["params"].pop())
    clear()
    return [param.grad for param in params]


class Own(nn.Parameter):
    """A parameter that notes how its gradient is cleared."""

    def __new__(cls, data: torch.Tensor, notes: list[Any]) -> Own:
        made: Own = torch.Tensor._make_subclass(cls, data, True)  # type: ignore[assignment]
        made.notes = notes
        return made

    @property
    def grad(self) -> Any:
        self.notes.append("read")
        return self.value

    @grad.setter
    def grad(self, value: Any) -> None:
        self.notes.append(value)
        self.value = value


def parameters_of_a_subclass(way: Way) -> Any:
    notes: list[Any] = []
    params, _ = with_gradients()
    own = Own(torch.ones(2), notes)
    optimizer = optim.SGD([params[0], own, params[1]], lr=0.1)
    clear = way(optimizer)
    own.grad = torch.ones(2)
    clear()
    return [notes, own.value, [param.grad for param in params]]


class Counts(optim.SGD):
    num_calls = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.num_calls += 1
        super().zero_grad(set_to_none)


def a_subclass_with_its_own(way: Way) -> Any:
    params, _ = with_gradients()
    optimizer = Counts(params, lr=0.1)
    way(optimizer)()
    return [optimizer.num_calls, [param.grad for param in params]]


def an_optimizer_with_its_own(way: Way) -> Any:
    params, optimizer = with_gradients()
    calls: list[Any] = []
    optimizer.zero_grad = lambda *args: calls.append(args)  # type: ignore[method-assign]
    way(optimizer)()
    return [calls, [param.grad for param in params]]


def one_that_torch_completes(way: Way) -> Any:
    params, optimizer = with_gradients()
    clear = way(optimizer)
    del optimizer._zero_grad_profile_name
    clear()
    return [optimizer._zero_grad_profile_name, [param.grad for param in params]]


def errors(way: Way) -> Any:
    params, optimizer = with_gradients()
    clear, said = way(optimizer), []
    for args in ((True, 2), ()):
        try:
            optimizer.param_groups.append({})
            clear(*args)
        except (KeyError, TypeError) as error:
            said.append((type(error), str(error).split("zero_grad")[-1].split("replaced")[-1]))
    return [said, [param.grad for param in params]]


class FunctionsSeen(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        names.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


class OpsSeen(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        names.append(str(func))
        return func(*args, **(kwargs or {}))


names: list[str] = []


def modes(way: Way) -> Any:
    params, optimizer = with_gradients()
    clear, seen = way(optimizer), []
    for mode in (FunctionsSeen, OpsSeen):
        names.clear()
        with mode():
            clear()
        seen.append([name for name in names if "record" in name or "grad" in name or "get" in name or "set" in name])
        params[0].grad = torch.ones(2)
    return seen


PROGRAMS = [
    plain,
    groups_of_all_kinds,
    to_zeros,
    what_is_seen_as_gradients_die,
    a_list_that_shrinks_meanwhile,
    parameters_of_a_subclass,
    a_subclass_with_its_own,
    an_optimizer_with_its_own,
    one_that_torch_completes,
    errors,
    modes,
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_torchs_own(program: Callable[[Way], Any], way: Way) -> None:
    for _ in range(2):
        assert same_bits(program(way), program(by_torch))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("no_python_of_torchs")
def test_it_is_native(way: Way) -> None:
    params, optimizer = with_gradients()
    clear = way(optimizer)
    for _ in range(3):
        params[1].grad = torch.ones(2)
        clear()
        assert [param.grad for param in params] == [None] * 3


def test_torchs_own_stays_where_nothing_is_compiled(no_python_of_torchs: None) -> None:
    params, optimizer = with_gradients()
    gradc.compile(by_torch(optimizer))()
    with pytest.raises(AssertionError, match="torch's own zero_grad"):
        optimizer.zero_grad()


@pytest.mark.parametrize("way", WAYS)
def test_a_class_that_gets_another_later(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    params, optimizer = with_gradients()
    clear, calls = way(optimizer), []
    clear()
    torchs = optim.Optimizer.zero_grad

    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        calls.append(set_to_none)
        torchs(self, set_to_none)

    monkeypatch.setattr(optim.Optimizer, "zero_grad", zero_grad)
    params[0].grad = torch.ones(2)
    clear()
    assert calls == [True] and params[0].grad is None


@pytest.mark.parametrize("way", WAYS)
def test_a_profiler_hears_of_it(way: Way) -> None:
    params, optimizer = with_gradients()
    clear = way(optimizer)
    clear()
    with torch.profiler.profile() as profile:
        clear()
    assert [event.name for event in profile.events()].count("Optimizer.zero_grad#SGD.zero_grad") == 1


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
def test_a_copy_clears_its_own(duplicate: Callable[[Any], Any]) -> None:
    params, optimizer = with_gradients()
    other = duplicate(gradc.compile(optimizer))
    own = other.param_groups[0]["params"]
    for param in own:
        param.grad = torch.ones(2)
    other.zero_grad()
    assert [param.grad for param in own] == [None] * 3 and all(param.grad is not None for param in params)


@torch._disable_dynamo
def hidden(x: torch.Tensor) -> torch.Tensor:
    return x * (2 if torch.compiler.is_compiling() else 3)


@torch._disable_dynamo(recursive=False)
def hidden_alone(x: torch.Tensor) -> torch.Tensor:
    return hidden(x).sin() + 1


def test_other_functions_that_torch_hides_go_on_as_they_are() -> None:
    params, optimizer = with_gradients()

    def step(x: torch.Tensor) -> torch.Tensor:
        first = hidden(x)
        optimizer.zero_grad()
        params[0].grad = hidden_alone(first)
        return params[0].grad

    run, x = gradc.compile(step), torch.randn(2)
    for _ in range(3):
        assert same_bits(run(x), step(x))


def test_two_threads_clear_their_own() -> None:
    def work() -> None:
        params, optimizer = with_gradients()
        clear = inside_a_step(optimizer)
        for _ in range(50):
            params[2].grad = torch.ones(2)
            clear()
            assert params[2].grad is None

    in_threads(2, work)
