"""A compiled module is the module: names, keys, special methods, checkpoints, copies; only its calls run compiled."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import types
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import gradc
from gradc.bits import same_bits
from tests.oracle import check, leaf


def stack() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh())


class Registering(nn.Module):
    """Counts its subclasses, as registries of models do."""

    subclasses: list[type] = []

    def __init_subclass__(cls, **kwargs: Any) -> None:
        Registering.subclasses.append(cls)

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        return x.sin() * scale


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    gradc.reset()


def num_graphs() -> int:
    return gradc.counters["stats"]["unique_graphs"]


def test_names_are_the_modules() -> None:
    module = stack()
    compiled = gradc.compile(module)
    for names in ("state_dict", "named_parameters", "named_buffers", "named_children"):
        assert list(dict(getattr(compiled, names)())) == list(dict(getattr(module, names)())), names
    assert [name for name, _ in compiled.named_modules()] == [name for name, _ in module.named_modules()]
    assert all(a is b for a, b in zip(compiled.parameters(), module.parameters(), strict=True))
    assert isinstance(compiled, nn.Sequential) and repr(compiled) == repr(module)
    parent = nn.ModuleDict({"body": compiled})
    assert list(parent.state_dict()) == [f"body.{key}" for key in module.state_dict()]


def test_special_methods_are_the_modules() -> None:
    module = stack()
    compiled = gradc.compile(module)
    assert compiled[0] is module[0] and len(compiled) == 3 and list(compiled) == list(module) and module[2] in list(compiled)
    assert "0" in gradc.compile(nn.ModuleDict({"0": nn.Tanh()}))
    linear = gradc.compile(nn.Linear(2, 2))
    assert bool(linear)
    with pytest.raises(TypeError):
        len(linear)
    with pytest.raises(AttributeError, match="'Linear' object has no attribute 'weights'"):
        linear.weights  # noqa: B018


def test_attributes_are_the_modules_both_ways() -> None:
    module = stack()
    compiled = gradc.compile(module)
    compiled.eval()
    compiled.note, module.other = "a", nn.Parameter(torch.ones(2))
    assert not module.training and module.note == "a" and "other" in dict(compiled.named_parameters())
    compiled.append(nn.Sigmoid())
    del compiled.note
    assert not hasattr(module, "note")
    x = torch.randn(5, 3)
    assert same_bits(compiled(x), module(x)) and len(module) == 4
    compiled.double()
    assert module[0].weight.dtype is torch.float64


def test_checkpoints_are_interchangeable() -> None:
    module, other = stack(), gradc.compile(stack())
    with torch.no_grad():
        module[0].weight.mul_(2)
    other.load_state_dict(module.state_dict())
    fresh = stack()
    fresh.load_state_dict(other.state_dict())
    assert same_bits([*fresh.state_dict().items()], [*module.state_dict().items()])


def test_checkpoints_of_torch_compile_are_taken() -> None:
    wrapped = torch.compile(stack()).state_dict()
    assert all(key.startswith("_orig_mod.") for key in wrapped)
    with torch.no_grad():
        wrapped["_orig_mod.0.weight"].mul_(2)
    compiled = gradc.compile(stack())
    compiled.load_state_dict(wrapped)
    assert same_bits(compiled[0].weight.detach(), wrapped["_orig_mod.0.weight"])
    parent = nn.ModuleDict({"body": gradc.compile(stack())})
    parent.load_state_dict({f"body.{key}": value for key, value in wrapped.items()})
    assert same_bits(parent["body"][0].weight.detach(), wrapped["_orig_mod.0.weight"])
    with pytest.raises(RuntimeError, match="Unexpected key"):
        compiled.load_state_dict({**wrapped, "_orig_mod.9.weight": torch.ones(1)})


def saved_and_loaded(compiled: Any) -> Any:
    file = io.BytesIO()
    torch.save(compiled, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, saved_and_loaded, lambda compiled: pickle.loads(pickle.dumps(compiled))])
def test_copies_are_compiled_modules_of_their_own(copied: Any) -> None:
    compiled = gradc.compile(stack())
    x = torch.randn(5, 3)
    other = copied(compiled)
    assert other[0].weight is not compiled[0].weight
    before = num_graphs()
    assert same_bits(other(x), copy.deepcopy(compiled._orig_mod)(x))
    assert num_graphs() == before + 1


def test_what_is_shared_in_a_copy_stays_shared() -> None:
    module = stack()
    both = copy.deepcopy([module, gradc.compile(module)])
    assert both[1][0] is both[0][0] and both[1]._orig_mod is both[0]
    assert copy.copy(both[1])[0] is both[0][0]


def test_compiled_twice_is_compiled_with_the_new_options() -> None:
    x = torch.ones(3, 3)
    for target in (nn.Linear(3, 3), lambda x: (x * 2).tanh(), Registering()):
        for again in (gradc.compile, lambda compiled: gradc.compile(compiled, backend="eager", fullgraph=True)):
            compiled = again(gradc.compile(target))
            before = num_graphs()
            assert same_bits(compiled(x), target(x)) and num_graphs() == before + 1
            gradc.reset()
            by_name = gradc.compile(torch.compile(target, backend="gradc"))
            assert same_bits(by_name(x), target(x)) and num_graphs() == 1


def test_a_step_compiled_twice_captures_once() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        (grad,) = torch.autograd.grad(x.sin().sum(), x)
        return grad

    x = torch.ones(3, requires_grad=True)
    again = gradc.compile(gradc.compile(step))
    assert same_bits(again(x), step(x)) and again.__wrapped__ is step


@pytest.mark.parametrize("target", [nn.Linear(3, 3), lambda x: x.sin()])
def test_what_another_backend_compiled_is_refused(target: Any) -> None:
    with pytest.raises(gradc.ConfigError, match="compiled by torch.compile already"):
        gradc.compile(torch.compile(target, backend="aot_eager"))


def test_hooks_run_as_often_as_in_eager() -> None:
    seen: list[str] = []
    compiled, x = gradc.compile(stack()), torch.randn(5, 3)
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module).__name__))
    try:
        compiled(x)
    finally:
        handle.remove()
    assert seen == ["Linear", "BatchNorm1d", "Tanh", "Sequential"]
    compiled.register_forward_hook(lambda *_: seen.append("own"))
    compiled(x)
    assert seen[4:] == ["own"]


HOOKS_OF_ALL: dict[str, tuple[Any, Any]] = {
    "forward": (nn.modules.module.register_module_forward_hook, lambda module, inputs, out: out * 2),
    "before": (nn.modules.module.register_module_forward_pre_hook, lambda module, inputs: (inputs[0] * 2,)),
    "backward": (nn.modules.module.register_module_full_backward_hook, lambda module, grads, of: tuple(g * 2 for g in grads)),
    "before backward": (nn.modules.module.register_module_full_backward_pre_hook, lambda module, of: (of[0] * 2,)),
}


@pytest.mark.parametrize("is_module", [True, False])
@pytest.mark.parametrize(("register", "hook"), HOOKS_OF_ALL.values(), ids=HOOKS_OF_ALL)
def test_hooks_of_all_modules_that_come_later(register: Any, hook: Any, is_module: bool) -> None:
    """Dynamo looked whether there were any at the first call: later ones were not called."""

    def step(compile: Any, x: torch.Tensor, model: Any) -> Any:
        run = compile(model if is_module else lambda x: model(x) * 2)
        of_tanh = lambda module, *args: hook(module, *args) if isinstance(module, nn.Tanh) else None
        seen = [run(x)]
        for _ in range(2):
            handle = register(of_tanh)
            try:
                seen += torch.autograd.grad(run(x).sum(), x)
            finally:
                handle.remove()
            seen += torch.autograd.grad(run(x).sum(), x)
        return seen

    check(step, leaf(5, 3), stack, allow_fallback=True)


def test_forward_runs_compiled_without_hooks_and_keeps_its_signature() -> None:
    module = Registering()
    compiled, x = gradc.compile(module), torch.ones(3)
    module.register_forward_hook(lambda *_: torch.zeros(3))
    assert inspect.signature(compiled.forward) == inspect.signature(module.forward)
    before = num_graphs()
    assert same_bits(compiled.forward(x, scale=3.0), x.sin() * 3) and num_graphs() == before + 1
    assert same_bits(compiled(x), torch.zeros(3))


def test_a_registry_of_subclasses_hears_nothing() -> None:
    known = list(Registering.subclasses)
    first, second = gradc.compile(Registering()), gradc.compile(Registering())
    assert Registering.subclasses == known and type(first) is type(second)


def test_a_compiled_module_inside_compiled_code_is_part_of_it() -> None:
    def step(compile: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        inner = compile(stack())
        outer = nn.ModuleDict({"body": inner})
        run = compile(lambda x, w: outer["body"](x @ w).cos(), fullgraph=True)
        for _ in range(2):
            run(x, w).sum().backward()
        inner.eval()
        return run(x, w), inner[0].weight.grad, inner[1].running_mean

    assert check(step, leaf(5, 2), leaf(2, 3)).num_graphs == 2


@pytest.mark.parametrize("is_bound", [True, False])
def test_a_forward_that_a_library_wrapped_is_one_graph_with_its_wrapper(is_bound: bool) -> None:
    """As accelerate's ``prepare`` does, for autocast."""

    def wrapped(module: Any) -> Any:
        inner = module.forward.__func__ if is_bound else module.forward

        def forward(*args: Any) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return inner(*args).float()

        module.forward = types.MethodType(forward, module) if is_bound else forward
        return module

    def step(compile: Any, x: torch.Tensor) -> torch.Tensor:
        module = wrapped(compile(stack(), fullgraph=True))
        loss = module(x).sum()
        loss.backward()
        return loss, module[0].weight.grad, module[1].running_mean

    assert check(step, leaf(5, 3)).num_graphs == 1


def test_a_method_that_calls_the_module_runs_it_compiled() -> None:
    class Stepping(nn.Linear):
        def step(self, x: torch.Tensor) -> torch.Tensor:
            return self(x).tanh().sum()

    compiled = gradc.compile(Stepping(3, 3))
    before = num_graphs()
    compiled.step(torch.ones(2, 3)).backward()
    assert num_graphs() == before + 1 and compiled.weight.grad is not None


def test_a_parametrization_of_the_module_is_seen() -> None:
    module, x = nn.Linear(3, 3), torch.ones(2, 3)
    compiled = gradc.compile(module)
    compiled(x)
    parametrizations.weight_norm(module)
    assert same_bits(compiled(x), module(x)) and same_bits(compiled.weight, module.weight)


def test_a_lazy_module_becomes_what_it_will() -> None:
    x, first = torch.ones(2, 3), []
    modules = (gradc.compile(nn.LazyLinear(4)), nn.LazyLinear(4))
    for module in modules:
        torch.manual_seed(0)  # for the weights, made in the first call
        first.append(module(x))
    compiled, eager = modules
    assert same_bits(*first) and same_bits(compiled(x), eager(x))
    assert same_bits([*compiled.state_dict().items()], [*eager.state_dict().items()])
