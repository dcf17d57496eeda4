"""One guard for modules, dictionaries and parameters: whatever of them changes between two calls, the second is eager's."""

from __future__ import annotations

import copy
import gc
import sys
import threading
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo import config as dynamo

import gradc
from gradc import bits, native

needs_versions = pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python does not tell versions of dictionaries there")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.scale, self.name, self.settings = 2.0, "sin", {"power": 2}
        self.table = OrderedDict(first=1.5, second=0.5)
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.linear(x)) * self.scale * self.frozen
        for name, factor in self.table.items():
            y = (y + factor).cos() if name == "first" else y * factor
        if "late" in self.__dict__:
            y = y * self.late
        return (y.sin() if self.name == "sin" else y.tanh()) ** self.settings["power"]


class Other(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 3


def stack() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(Layer(), nn.Tanh(), Layer(), nn.Linear(4, 2))


def _parameter(model: Any) -> None:
    model[0].linear.weight = nn.Parameter(model[0].linear.weight.detach() * 2)


def _number(model: Any) -> None:
    model[2].scale = 3.0


def _flag(model: Any) -> None:
    model[2].linear.weight.requires_grad_(False)


def _thawed(model: Any) -> None:
    model[0].frozen.requires_grad_(True)


def _data(model: Any) -> None:
    model[0].linear.weight.data = torch.arange(16.0).view(4, 4).t()


def _dtype(model: Any) -> None:
    model.double()


def _entry(model: Any) -> None:
    model[0].settings["power"] = 3


def _order(model: Any) -> None:
    model[0].table.move_to_end("first")


def _attribute(model: Any) -> None:
    model[2].late = 0.5


def _class(model: Any) -> None:
    model[0].__class__ = Other


def _dictionary(model: Any) -> None:
    other = copy.deepcopy(model[0])
    other.scale = 5.0
    model[0].__dict__ = other.__dict__


def _module(model: Any) -> None:
    model[1] = nn.GELU()


def _mode(model: Any) -> None:
    model.eval()


def _hook(model: Any) -> None:
    model[0].linear.register_forward_hook(lambda module, inputs, output: output * 2)


def _own_forward(model: Any) -> None:
    model[1].forward = torch.relu


def _missing(model: Any) -> None:
    model[3].bias = None


CHANGES: list[Callable[[Any], None]] = [
    _parameter, _number, _flag, _thawed, _data, _dtype, _entry, _order, _attribute, _class, _dictionary, _module, _mode, _hook,
    _own_forward, _missing,
]  # fmt: skip


def step(forward: Callable[[Tensor], Tensor], model: Any) -> list[Any]:
    dtype = next(model.parameters()).dtype
    x = torch.linspace(-1, 1, 12, dtype=dtype).view(3, 4).requires_grad_()
    model.zero_grad()
    y = forward(x)
    y.sum().backward()
    return [y.detach().clone(), x.grad, *(None if p.grad is None else p.grad.clone() for p in model.parameters())]


def assert_same(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other)
    for mine, eagers in zip(one, other, strict=True):
        assert (mine is None) == (eagers is None)
        assert mine is None or bits.same_bits(mine, eagers)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__[1:])
def test_a_change_is_seen(change: Callable[[Any], None]) -> None:
    model, eager = stack(), stack()
    compiled = gradc.compile(model)
    for _ in range(3):
        assert_same(step(compiled, model), step(eager, eager))
    change(model), change(eager)
    for _ in range(3):
        assert_same(step(compiled, model), step(eager, eager))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__[1:])
def test_a_change_is_seen_where_the_model_is_a_variable(change: Callable[[Any], None]) -> None:
    model, eager = stack(), stack()
    compiled = gradc.compile(lambda x: model(x) * 2)
    for _ in range(3):
        assert_same(step(compiled, model), step(lambda x: eager(x) * 2, eager))
    change(model), change(eager)
    for _ in range(3):
        assert_same(step(compiled, model), step(lambda x: eager(x) * 2, eager))


def _fewer(model: Any, listed: list[Any]) -> None:
    listed.pop()


def _swapped(model: Any, listed: list[Any]) -> None:
    listed[0], listed[2] = listed[2], listed[0]


def _twice(model: Any, listed: list[Any]) -> None:
    listed[2] = listed[0]


def _elsewhere(model: Any, listed: list[Any]) -> None:
    listed[0] = nn.Parameter(model[0].weight.detach() * 3)


def _in_the_model(model: Any, listed: list[Any]) -> None:
    model[0].weight = nn.Parameter(model[0].weight.detach() * 3)


def _in_both(model: Any, listed: list[Any]) -> None:
    listed[0] = model[0].weight = nn.Parameter(model[0].weight.detach() * 3)


def _of_other_strides(model: Any, listed: list[Any]) -> None:
    listed[0].data = listed[0].data.t().contiguous().t()


def _listed_frozen(model: Any, listed: list[Any]) -> None:
    listed[3].requires_grad_(False)


LISTED: list[Callable[[Any, list[Any]], None]] = [
    _fewer, _swapped, _twice, _elsewhere, _in_the_model, _in_both, _of_other_strides, _listed_frozen,
]  # fmt: skip


def penalized(goes_by_identity: bool) -> tuple[Any, list[Any], Callable[[Tensor], Tensor]]:
    """A model, its parameters in a list, and a loss that may go by which of them are one."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    listed = [*model.parameters()]

    def loss(x: Tensor) -> Tensor:
        penalty = x.sum()
        for i, p in enumerate(listed):
            penalty = penalty + p.sin().sum() * (i + 1) * p.stride()[0]
        if goes_by_identity:
            penalty = penalty * (2 if listed[0] is listed[2] else 3) + (1 if listed[0] is model[0].weight else 2)
        return model(x) * penalty

    return model, listed, loss


@pytest.mark.parametrize("goes_by_identity", [False, True])
@pytest.mark.parametrize("change", LISTED, ids=lambda change: change.__name__[1:])
def test_a_change_is_seen_in_a_list_of_parameters(change: Callable[[Any, list[Any]], None], goes_by_identity: bool) -> None:
    model, listed, loss = penalized(goes_by_identity)
    of_eager, listed_by_eager, eager = penalized(goes_by_identity)
    compiled = gradc.compile(loss)
    for _ in range(3):
        assert_same(step(compiled, model), step(eager, of_eager))
    change(model, listed), change(of_eager, listed_by_eager)
    for _ in range(3):
        assert_same(step(compiled, model), step(eager, of_eager))


@needs_versions
@pytest.mark.skipif(not dynamo.use_lamba_guard_for_object_aliasing, reason="Dynamo asks it in C++ since torch 2.14")
def test_parameters_in_a_list_are_not_looked_at_in_python() -> None:
    """Dynamo asks ``listed[0] is model[0].weight`` by a function in Python, once for each."""
    before = [*_cut_guards()]
    model, _, loss = penalized(goes_by_identity=True)
    step(gradc.compile(loss), model)
    guards = [guard for guard in _cut_guards() if all(guard is not other for other in before)]
    asked = [guard.gradc_whole.get_epilogue_lambda_guards() for guard in guards]
    assert guards and all(" is " in str(first.verbose_code_parts()) for first, *_ in asked)
    assert not any(guard.root.get_epilogue_lambda_guards() for guard in guards)


@needs_versions
def test_lists_made_anew_at_each_call() -> None:
    """What is in them is compared; an object that another name may lead to, by its place, too."""
    asked = 0

    def look(variables: dict[str, Any]) -> bool:
        nonlocal asked
        asked += 1
        return True

    guard = native.extension.SameObjects(look, {})
    listed = guard.add("local", 0, "listed", "sequence", True)
    guard.add("element", listed, 0, "tensor", True)
    guard.add("element", listed, 1, "tensor", False)
    first, second = (nn.Parameter(torch.ones(2)) for _ in range(2))
    for variables, expected in [
        ([first, second], 1), ([first, second], 1), ([nn.Parameter(torch.ones(2)), second], 1), ([first, first], 2),
        ([first, first], 2), ([nn.Parameter(torch.ones(3)), first], 3), ((first, first), 4), ([first, first, first], 5),
        ([torch.ones(2), first, first], 6), ([first], 7),
    ]:  # fmt: skip
        assert guard.ask({"listed": variables})
        assert asked == expected


def test_two_models_take_turns() -> None:
    models = [stack(), stack()]
    models[1][0].scale = 7.0

    @gradc.compile
    def f(model: Any, x: Tensor) -> Tensor:
        return model(x)

    for _ in range(4):
        for model in models:
            eager = copy.deepcopy(model)
            assert_same(step(lambda x: f(model, x), model), step(eager, eager))


def test_a_name_of_a_module_of_python() -> None:
    """Looked up at each call: other globals of the module may change all the time."""
    module = types.ModuleType("gradc_test_of_same_objects")
    module.__dict__.update(F=F, count=0)
    exec("def f(x):\n    return F.silu(F.gelu(x)) * F.softplus(x)", vars(module))
    compiled = gradc.compile(module.f)
    x = torch.linspace(-2, 2, 7)
    assert bits.same_bits(compiled(x), module.f(x))
    module.F = types.SimpleNamespace(silu=torch.sin, gelu=torch.cos, softplus=torch.tanh)
    assert bits.same_bits(compiled(x), module.f(x))


@needs_versions
def test_it_is_asked_in_place_of_dynamos_guards() -> None:
    before = [*_cut_guards()]
    model = stack()
    step(gradc.compile(model), model)
    guards = [guard for guard in _cut_guards() if all(guard is not other for other in before)]
    assert guards
    assert all(guard.root is not guard.gradc_whole for guard in guards)


def _cut_guards() -> Iterator[Any]:
    from torch._dynamo.guards import GuardManagerWrapper

    return (each for each in gc.get_objects() if type(each) is GuardManagerWrapper and hasattr(each, "gradc_whole"))


def test_autocast_between_calls() -> None:
    """The keys of an argument are compared as kernels are chosen now, though nothing was looked at again since."""
    model, eager = stack(), stack()
    compiled = gradc.compile(model)
    before = gradc.counters["stats"]["unique_graphs"]
    for enabled in (False, False, True, True, False, True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            assert_same(step(compiled, model), step(eager, eager))
    assert gradc.counters["stats"]["unique_graphs"] <= before + 4


def test_a_model_that_writes_at_each_call() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.last = stack(), None

        def forward(self, x: Tensor) -> Tensor:
            y = self.layers(x)
            self.last = y.detach()
            return y

    model, eager = Counting(), Counting()
    compiled = gradc.compile(model)
    for _ in range(100):
        assert_same(step(compiled, model), step(eager, eager))
        assert bits.same_bits(model.last, eager.last)


def test_threads() -> None:
    model, found = stack().eval(), []
    compiled = gradc.compile(model)
    x = torch.linspace(-1, 1, 12).view(3, 4)
    expected = model(x)

    def calls() -> None:
        for i in range(50):
            with torch.set_grad_enabled(i % 3 > 0):
                found.append(bits.same_bits(compiled(x), expected))

    threads = [threading.Thread(target=calls) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found) and len(found) == 200
