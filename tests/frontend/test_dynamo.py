"""What Dynamo hands over: ops it would take apart stay whole."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradc
from gradc import FallbackError
from gradc.bits import same_bits
from tests.oracle import check, leaf


def test_addcdiv_is_not_taken_apart():
    def function(x, a, b):
        return torch.addcdiv(x, a, b, value=0.3)

    x, a, b = (torch.rand(50, 50) + 0.5 for _ in range(3))
    assert same_bits(gradc.compile(function, fullgraph=True)(x, a, b), function(x, a, b))
    # div, mul and add round twice: this is what torch.compile runs
    assert not same_bits(torch.div(a, b) * 0.3 + x, function(x, a, b))


def test_torch_compile_by_name_runs_the_default_backend() -> None:
    x = torch.randn(3, requires_grad=True)
    by_name = torch.compile(lambda x: (x * 2).tanh(), backend="gradc")(x)
    by_function = gradc.compile(lambda x: (x * 2).tanh())(x)
    interpreted = gradc.compile(lambda x: (x * 2).tanh(), backend="eager")(x)
    assert by_name.grad_fn.name() == by_function.grad_fn.name() != interpreted.grad_fn.name()


@pytest.mark.parametrize("given", [{"mode": "reduce-overhead"}, {"options": {"verify": 1}}], ids=str)
def test_what_torch_compile_is_told_for_another_backend_is_refused(given: dict[str, Any]) -> None:
    """They were not heeded, and nothing was said."""
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="knows no (mode|options): .*\n  Leave it out"):
        torch.compile(lambda x: x * 2, backend="gradc", **given)(torch.ones(2))


class Tree(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


PLACES = ["", "layers.0", "layers.1.0", "layers.2.1"]
KINDS = ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook", "register_full_backward_pre_hook"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_hooks_anywhere_are_noticed_and_forgotten(place: str, kind: str) -> None:
    torch._dynamo.reset()
    module, x, seen = Tree(), torch.randn(2, 4, requires_grad=True), []
    compiled = gradc.compile(module)
    target = module.get_submodule(place)

    def step() -> int:
        seen.clear()
        compiled(x).sum().backward()
        return len(seen)

    assert (step(), step()) == (0, 0)
    handle = getattr(target, kind)(lambda *_: seen.append(kind))
    assert (step(), step()) == (1, 1)
    handle.remove()
    assert (step(), step()) == (0, 0)


def test_hooks_after_modules_were_replaced() -> None:
    torch._dynamo.reset()
    module, x, seen = Tree(), torch.randn(2, 4), []
    compiled = gradc.compile(module)
    compiled(x)
    module.layers[1][0] = nn.Linear(4, 4)
    assert same_bits(compiled(x), module(x))
    module.layers[1][0].register_forward_hook(lambda *_: seen.append(0))
    compiled(x)
    assert len(seen) == 1
    module.layers[1][0].__dict__ = dict(module.layers[1][0].__dict__, _forward_hooks=type(module._forward_hooks)())
    compiled(x)
    assert len(seen) == 1
    module.layers[2].__dict__["_forward_hooks"][7] = lambda *_: seen.append(0)
    compiled(x)
    assert len(seen) == 2


def test_hooks_on_another_module_of_the_same_class() -> None:
    torch._dynamo.reset()
    first, second, x, seen = Tree(), Tree(), torch.randn(2, 4), []
    run = gradc.compile(lambda module, x: module(x))
    for _ in range(3):
        run(first, x), run(second, x)
    second.layers[0].register_forward_hook(lambda *_: seen.append(0))
    run(first, x)
    assert not seen
    run(second, x)
    assert len(seen) == 1
    del second
    third = Tree()
    third.layers[0].register_forward_hook(lambda *_: seen.append(0))
    run(third, x)
    assert len(seen) == 2


def a_hook_inside(x: torch.Tensor) -> torch.Tensor:
    hidden = x * 2
    hidden.register_hook(lambda grad: grad * 3)
    return hidden.tanh()


def test_a_hook_inside_is_registered_between_two_graphs() -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(FallbackError, match="hook registered inside"):
        gradc.compile(a_hook_inside, fullgraph=True)(x)
    torch._dynamo.reset()
    graphs = gradc.counters["stats"]["unique_graphs"]
    gradc.compile(a_hook_inside)(x).sum().backward()
    compiled, x.grad = x.grad, None
    a_hook_inside(x).sum().backward()
    assert same_bits(compiled, x.grad)
    assert gradc.counters["stats"]["unique_graphs"] == graphs + 2


def test_where_dynamo_breaks_down_the_frame_runs_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks_down(*_: object, **__: object) -> None:
        raise AssertionError("False != True")

    monkeypatch.setattr(torch._subclasses.meta_utils, "assert_metadata_eq", breaks_down)
    before, never_again = (gradc.counters[group]["tracing failed"] for group in ("fallbacks", "uncompiled"))
    run, x = gradc.compile(lambda x: (x * 2).tanh()), torch.ones(3)
    for _ in range(4):
        assert same_bits(run(x), (x * 2).tanh())
    assert gradc.counters["fallbacks"]["tracing failed"] == before + 1
    assert gradc.counters["uncompiled"]["tracing failed"] == never_again + 3  # it is not tried a third time
    torch._dynamo.reset()
    with pytest.raises(AssertionError, match="False != True"):
        gradc.compile(lambda x: (x * 2).tanh(), fullgraph=True)(x)


def test_a_mistake_is_reported_as_in_eager_and_the_next_call_is_compiled() -> None:
    run = gradc.compile(lambda x, y: (x @ y).tanh())
    good, bad = torch.ones(3, 3), torch.ones(2, 2)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied") as caught:
        run(good, bad)
    assert type(caught.value) is RuntimeError
    graphs = gradc.counters["stats"]["unique_graphs"]
    assert same_bits(run(good, good), (good @ good).tanh())
    assert gradc.counters["stats"]["unique_graphs"] == graphs + 1


def narrowed(x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    return torch.narrow(x.sin(), 0, start, 2).cos()


def split(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return x.sin().tensor_split(at)[1].cos()


def selected(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return x.sin()[at].cos()


def transformed(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    window = torch.hann_window(8)
    spectrum = torch.stft(x.sin().expand(16, -1).reshape(-1), 8, window=window, return_complex=True)
    return torch.istft(spectrum, 8, window=window).cos() + spectrum.istft(8, window=window)


@pytest.mark.parametrize("function, num_graphs", [(narrowed, 2), (split, 3), (selected, 2), (transformed, 3)])
def test_the_graph_ends_where_a_value_is_read(function: Any, num_graphs: int) -> None:
    def step(compile: Any, x: torch.Tensor) -> None:
        run = compile(function)
        for at in (2, 3):
            run(x, torch.tensor(at)).sum().backward()

    assert check(step, leaf(6)).num_graphs == num_graphs


def test_a_value_that_is_read_under_fullgraph() -> None:
    x, at = torch.randn(6, requires_grad=True), torch.tensor(1)
    for function in (narrowed, transformed):
        with pytest.raises(FallbackError, match="fullgraph=True, but a part would run eagerly: data-dependent"):
            gradc.compile(function, fullgraph=True)(x, at)


def test_numbers_that_change_are_inputs() -> None:
    """One graph for the first number, a constant, and one for all others."""

    def step(compile: Any, x: torch.Tensor, scale: torch.Tensor) -> None:
        run = compile(lambda x, number, scale: (x * number + scale).sin())
        for number in (0.5, 0.25, 2.5, 4.0, 0.125):
            run(x, number, scale).sum().backward()

    assert check(step, leaf(4), lambda: torch.tensor(3)).num_graphs == 2


@pytest.mark.parametrize("is_compiled_itself", [False, True], ids=["as it is", "compiled by itself"])
def test_what_is_checkpointed_is_compiled_by_itself(is_compiled_itself: bool) -> None:
    """docs/reasons.md and the words of the graph break say so."""

    def block(x: torch.Tensor) -> torch.Tensor:
        return x.sin().cos()

    part = gradc.compile(block) if is_compiled_itself else block

    def step(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(part, x * 2, use_reentrant=False).sum()

    gradc.reset()
    gradc.compile(step)(torch.ones(3, requires_grad=True)).backward()
    assert gradc.counters["uncompiled"]["gradc: checkpoint"] == 1
    assert gradc.counters["stats"]["unique_graphs"] == 3


def test_a_mode_of_torch_compile_is_refused_with_what_to_write_instead():
    with pytest.raises(gradc.ConfigError, match=r"knows no mode: 'max-autotune'\.\n  Leave it out: gradc has no modes"):
        gradc.compile(torch.sin, mode="max-autotune")
