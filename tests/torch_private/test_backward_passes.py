"""What torch tells hooks of the pass that runs, captured and compiled: the node, and the pass's number."""

from __future__ import annotations

import contextlib
import gc
import weakref
from typing import Any

import pytest
import torch

import gradc
from gradc.torch_private.backward_passes import shown

WAYS = {
    "compiled": (gradc.compile, contextlib.nullcontext),
    "captured": (lambda function: function, gradc.compiled_autograd.enable),
    "both": (gradc.compile, gradc.compiled_autograd.enable),
}
each_way = pytest.mark.parametrize(("compile", "around"), WAYS.values(), ids=WAYS)
pytestmark = pytest.mark.usefixtures("nothing_captured")


@each_way
def test_hooks_meet_the_node_that_they_hang_on(compile: Any, around: Any) -> None:
    """A captured pass is one node to torch's engine, and that is what a hook was told."""
    double, met = compile(lambda w: w * 2), []

    def meet(node: Any) -> Any:
        return lambda *_: met.append(torch._C._current_autograd_node() is node)

    with around():
        for _ in range(3):
            w = torch.ones(3, requires_grad=True)
            first = double(w)
            second = first.sin()
            for tensor in (first, second):
                tensor.register_hook(meet(tensor.grad_fn))
                tensor.grad_fn.register_prehook(meet(tensor.grad_fn))
                tensor.grad_fn.register_hook(meet(tensor.grad_fn))
            w.register_post_accumulate_grad_hook(lambda _: met.append("Accumulate" in torch._C._current_autograd_node().name()))
            second.sum().backward()
    assert met == [True] * 21
    assert torch._C._current_autograd_node() is None


def test_a_pass_inside_a_hook_has_nodes_of_its_own() -> None:
    names = []

    def again(grad: torch.Tensor) -> None:
        inner = torch.ones(3, requires_grad=True)
        with torch.enable_grad(), gradc.compiled_autograd.disable():
            exp = inner.exp()
            exp.register_hook(lambda _: names.append(torch._C._current_autograd_node().name()))
            exp.sum().backward()
        names.append(torch._C._current_autograd_node().name())

    with gradc.compiled_autograd.enable():
        for _ in range(2):
            w = torch.ones(3, requires_grad=True)
            sine = w.sin()
            sine.register_hook(again)
            sine.sum().backward()
    assert names == ["ExpBackward0", "SinBackward0"] * 2


@each_way
def test_compiling_counts_for_no_pass(compile: Any, around: Any) -> None:
    function, numbers = compile(lambda w: (w * 2).sin().sum()), []
    gradc.patches().apply()
    with around():
        for size in (3, 3, 4, 5):
            w = torch.ones(size, requires_grad=True)
            w.register_hook(lambda _: numbers.append(torch._C._current_graph_task_id()))
            function(w).backward()
    assert numbers == list(range(numbers[0], numbers[0] + 4))
    assert torch._C._current_graph_task_id() == -1


def test_numbers_without_own_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradc.torch_private.backward_passes._own", [2, 5, 6])
    assert [shown(number) for number in range(-1, 9)] == [-1, 0, 1, -2, 2, 3, -3, -4, 4, 5]


def test_what_a_node_keeps_dies_with_it_under_anomaly_mode() -> None:
    """What recorded the derivative's tape held the node in which it did, until the collector came."""

    class Kept:
        pass

    function = gradc.compile(lambda w: (w * 2).exp())

    def step() -> weakref.ref[Kept]:
        w = torch.ones(3, requires_grad=True)
        out, kept = function(w), Kept()
        with torch.autograd.detect_anomaly():
            torch.autograd.grad(out, w, torch.ones_like(out), create_graph=True)
        out.grad_fn.metadata["kept"] = kept
        return weakref.ref(kept)

    gc.disable()
    try:
        assert [step()() for _ in range(2)] == [None, None]
    finally:
        gc.enable()
