"""Regions inside of saved-tensors hooks: what is packed, when, and what backward does with what is unpacked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import gradc
from tests.compilers import Compiler, find
from tests.oracle import check, compare, leaf

HOOKS: dict[str, Any] = {
    "the same": lambda: saved_tensors_hooks(lambda t: t, lambda t: t),
    "other values": lambda: saved_tensors_hooks(lambda t: (t.dtype, t.double() * 1.25), lambda kept: kept[1].to(kept[0])),
    "another dtype": lambda: saved_tensors_hooks(lambda t: t.bfloat16(), lambda t: t.float()),
    "another dtype back": lambda: saved_tensors_hooks(lambda t: t, lambda t: t.double()),
    "another layout": lambda: saved_tensors_hooks(lambda t: t.detach().numpy().copy(), torch.from_numpy),
    "memory of the hook's": lambda: saved_tensors_hooks(lambda t: t.detach().numpy(), torch.from_numpy),
    "save_on_cpu": save_on_cpu,
}


@pytest.fixture(params=["gradc", "gradc_captured"])
def compiler(request: pytest.FixtureRequest) -> Compiler:
    return find(request.param)


@pytest.fixture(params=HOOKS)
def hooks(request: pytest.FixtureRequest) -> Any:
    return HOOKS[request.param]


def f(x: Tensor, w: Tensor) -> Tensor:
    hidden = torch.tanh(x @ w.t())
    hidden.sin()  # packs, and no output leads there
    return F.layer_norm(hidden.exp() * hidden, (8,)).softmax(-1) @ w


def test_first_order(hooks: Any, compiler: Compiler) -> None:
    def step(compile: Any, x: Tensor, w: Tensor) -> Tensor:
        with hooks():
            y = compile(f)(x, w)
        (y if y.dtype is torch.float32 else y.float()).square().sum().backward()
        return y

    check(step, leaf(4, 8), leaf(8, 8), compiler=compiler, allow_fallback=hooks is HOOKS["another dtype back"])


def test_backward_twice(hooks: Any, compiler: Compiler) -> None:
    """What the first unpacked, the second unpacks again: no result lies in memory that a hook keeps."""

    def step(compile: Any, x: Tensor, w: Tensor) -> None:
        with hooks():
            y = compile(f)(x, w).sum()
        y.backward(retain_graph=True)
        y.backward()

    check(step, leaf(4, 8), leaf(8, 8), compiler=compiler, allow_fallback=hooks is HOOKS["another dtype back"])


@pytest.mark.parametrize("name", ["the same", "other values", "save_on_cpu"])
def test_second_order(name: str) -> None:
    def step(compile: Any, x: Tensor, w: Tensor) -> None:
        with HOOKS[name]():
            y = compile(lambda x, w: torch.tanh(x @ w).exp())(x, w)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        slope.square().sum().backward()

    check(step, leaf(4, 8), leaf(8, 8))


def test_second_part_of_a_segment_after_the_first_was_freed(compiler: Compiler) -> None:
    """Under hooks all that a node owned was freed, though only a part of it had run: the second call raised."""

    def step(compile: Any, x: Tensor, w: Tensor) -> Any:
        with HOOKS["other values"]():
            y = compile(lambda x, w: x.sin().exp().sum() + w.cos().tanh().sum())(x, w)
        return torch.autograd.grad(y, x), torch.autograd.grad(y, w)

    check(step, leaf(4, 8), leaf(8, 8), compiler=compiler)


def test_freed_saved_tensors_raise(compiler: Compiler) -> None:
    def step(compile: Any, x: Tensor, w: Tensor) -> None:
        with HOOKS["other values"]():
            y = compile(f)(x, w).sum()
        y.backward()
        y.backward()

    check(step, leaf(4, 8), leaf(8, 8), compiler=compiler, compare_messages=True)


def test_packed_before_it_is_written_into() -> None:
    """Batch norm packs its running mean, and then writes into it."""

    def step(compile: Any, x: Tensor, norm: nn.BatchNorm1d) -> None:
        with saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            y = compile(norm)(x)
        norm.eval()
        y.sin().sum().backward()

    check(step, leaf(4, 8), lambda: nn.BatchNorm1d(8))


def test_written_into_after_it_was_packed() -> None:
    """Eager checks no version then: backward gets what was packed. A segment would refuse."""

    def step(compile: Any, x: Tensor) -> None:
        def g(x: Tensor) -> Tensor:
            y = x.exp()
            z = y.sin()
            y.mul_(2)
            return z.sum() + y.sum()

        with saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            compile(g)(x).backward()

    report = compare(step, leaf(4, 8))
    assert not report.differences
    assert [*report.fallbacks] == ["saved tensor modified in place inside the region"]


def test_draws_of_the_region(compiler: Compiler) -> None:
    def step(compile: Any, x: Tensor) -> None:
        with save_on_cpu():
            y = compile(lambda x: F.dropout(F.dropout(x, 0.5).sin(), 0.5))(x)
        y.sum().backward()

    check(step, leaf(4, 8), compiler=compiler)


def test_pack_hook_that_raises() -> None:
    """``numpy`` raises for what requires a gradient: the hook gets tensors that do where eager's do."""

    def step(compile: Any, x: Tensor) -> None:
        with saved_tensors_hooks(lambda t: t.numpy(), torch.from_numpy):
            compile(lambda x: x.sin().exp())(x)

    check(step, leaf(4, 8), compare_messages=True)


def test_hook_that_looks_for_parameters() -> None:
    def step(compile: Any, x: Tensor, layer: nn.Linear) -> None:
        with saved_tensors_hooks(lambda t: t if isinstance(t, nn.Parameter) else t * 2, lambda t: t):
            y = compile(lambda x: F.linear(x, layer.weight, layer.bias).sin() * layer.weight)(x)
        y.sum().backward()

    check(step, leaf(8, 8), lambda: nn.Linear(8, 8))


def test_sizes_that_change() -> None:
    def step(compile: Any, *inputs: Tensor) -> None:
        compiled = compile(lambda x: (x.sin() @ x.t()).softmax(-1))
        for x in inputs:
            with HOOKS["other values"]():
                y = compiled(x)
            y.square().sum().backward()

    # The first call is compiled, and counts the sum of two gradients, which eager does not count inside of these hooks.
    check(step, *(leaf(size, 4) for size in (3, 5, 6, 7)), allow_fallback=True, compare_counters=False)


def test_hooks_that_keep_notes_run_eagerly_and_are_counted() -> None:
    """What was saved is told in eager's order, to code that may look at anything."""

    def step(compile: Any, x: Tensor) -> Any:
        shapes: list[Any] = []

        def pack(tensor: Tensor) -> Tensor:
            shapes.append((tuple(tensor.shape), type(tensor.grad_fn).__name__))
            return tensor

        with saved_tensors_hooks(pack, lambda t: t):
            y = compile(lambda x: x.sin().exp())(x)
        y.sum().backward()
        return [str(shape) for shape in shapes]

    report = compare(step, leaf(4, 8))
    assert not report.differences
    assert [*report.fallbacks] == ["saved-tensors hooks"]


def test_gradient_inside_unpacks_inside() -> None:
    def step(compile: Any, x: Tensor) -> None:
        def g(x: Tensor) -> Tensor:
            return torch.autograd.grad(x.sin().sum(), x, create_graph=True)[0] * x

        with HOOKS["other values"]():
            y = compile(g)(x)
        y.sum().backward()

    assert not compare(step, leaf(4, 8)).differences


def test_checkpoint_inside_of_a_whole_graph() -> None:
    """Around it the hooks are checkpoint's, not the user's."""

    def step(compile: Any, x: Tensor) -> None:
        def g(x: Tensor) -> Tensor:
            return checkpoint(lambda t: t.sin().exp(), x, use_reentrant=False).cos()

        with HOOKS["other values"]():
            y = compile(g)(x)
        y.sum().backward()

    assert not compare(step, leaf(4, 8)).differences


def test_checkpoint_inside_of_a_whole_graph_refuses() -> None:
    g = gradc.compile(lambda x: checkpoint(torch.sin, x, use_reentrant=False).cos(), fullgraph=True)
    g(torch.ones(3, requires_grad=True))
    with HOOKS["other values"](), pytest.raises(gradc.FallbackError):
        g(torch.ones(3, requires_grad=True))


def test_what_is_compiled_is_kept() -> None:
    """A second call compiles nothing."""
    g = gradc.compile(f)
    x, w = leaf(4, 8)(), leaf(8, 8)()

    def run() -> Any:
        with HOOKS["another layout"]():
            y = g(x, w)
        y.sum().backward()
        return gradc.counters["aot"]["backward_compiles"]

    assert run() == run() > 0


@pytest.mark.parametrize("unpack", [lambda t: 3, lambda t: t.view(7, 5), lambda t: t.numpy(), lambda t: t[0, 0, 0]])
def test_unpack_hook_that_is_wrong(unpack: Any) -> None:
    """The error is eager's, class and words."""

    def step(compile: Any, x: Tensor) -> None:
        with saved_tensors_hooks(lambda t: t.detach(), unpack):
            y = compile(lambda x: x.sin().exp())(x)
        y.sum().backward()

    check(step, leaf(4, 8), compare_messages=True)


def test_sizes_that_change_and_writes_run_eagerly() -> None:
    """A call after one inside of hooks had the sizes of that; nodes that a write makes anew asked for others' tensors."""

    def changing(compile: Any, c: Tensor) -> Any:
        call = compile(lambda c: c.cumprod(0), dynamic=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
            first = call(c)
        first.sum().backward(inputs=[c])
        call(c).sum().backward()
        return c.grad

    def writing(compile: Any, a: Tensor, b: Tensor) -> Any:
        def f(a: Tensor, b: Tensor) -> Tensor:
            t = torch.nn.functional.softplus(b)
            out = torch.maximum(a.new_zeros(a.shape[0]).sum() + a, t * t)
            out.view(-1).clamp_(-1, 1)
            return out

        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
            return compile(f)(a, b)

    assert check(changing, leaf(2, 3), allow_fallback=True).fallbacks == {"saved-tensors hooks": 1}
    assert check(writing, leaf(1, 4), leaf(), allow_fallback=True).fallbacks == {"saved-tensors hooks": 1}
