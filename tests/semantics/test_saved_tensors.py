"""Saved tensors: what is kept, for how long, and the errors for using it too late."""

from __future__ import annotations

import gc
import weakref

import torch
import torch.nn.functional as F
from torch import nn

from tests.oracle import leaf
from tests.semantics.registry import case


def f(x, w):
    return torch.tanh(x @ w).exp()


class Box:
    """What a pack hook returns here: alive exactly as long as autograd keeps it."""

    def __init__(self, tensor):
        self.tensor = tensor


class Kept:
    """Packs into boxes and says how many, or how many bytes, are still alive."""

    def __init__(self):
        self.boxes = []
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda box: box.tensor)

    def pack(self, tensor):
        box = Box(tensor)
        self.boxes.append(weakref.ref(box))
        return box

    def num_alive(self):
        return sum(box() is not None for box in self.boxes)

    def num_bytes(self):
        return sum(box().tensor.nbytes for box in self.boxes if box() is not None)


@case("Activation memory freed", leaf(4, 8), leaf(8, 8))
def test_kept_after_forward_and_backward(compile, x, w):
    kept = Kept()
    with kept.hooks:
        y = compile(f)(x, w)
    after_forward = kept.num_alive(), kept.num_bytes()
    y.sum().backward()
    return after_forward, kept.num_alive()


@case("Activation memory freed", leaf(4, 8), leaf(8, 8))
def test_freed_with_the_output(compile, x, w):
    kept = Kept()
    with kept.hooks:
        y = compile(f)(x, w)
    del y
    gc.collect()
    return kept.num_alive()


@case("Activation memory freed", leaf(4, 8), leaf(8, 8))
def test_freed_as_backward_proceeds(compile, x, w):
    """At the hook of a returned intermediate, what came after it is gone and what came before is not."""
    kept, events = Kept(), []

    def g(x, w):
        hidden = torch.tanh(x @ w)
        return hidden, torch.exp(hidden @ w).sin()

    with kept.hooks:
        hidden, y = compile(g)(x, w)
    hidden.register_hook(lambda grad: events.append(kept.num_alive()))
    y.sum().backward()
    return events, kept.num_alive()


@case("Activation memory freed", leaf(4, 8), leaf(8, 8))
def test_retained_while_retain_graph(compile, x, w):
    kept = Kept()
    with kept.hooks:
        y = compile(f)(x, w)
    y.sum().backward(retain_graph=True)
    during = kept.num_alive()
    y.sum().backward()
    return during, kept.num_alive()


@case("Activation memory freed", leaf(4, 8), leaf(8, 8))
def test_unused_branch_stays_until_its_output_goes(compile, x, w):
    kept = Kept()
    with kept.hooks:
        a, b = compile(lambda x, w: (f(x, w), torch.sin(x * 2)))(x, w)
    a.sum().backward()
    between = kept.num_alive()
    del b
    return between, kept.num_alive()


@case("Activation memory freed", leaf(4, 8), leaf(8, 8))
def test_nothing_saved_without_grad(compile, x, w):
    kept = Kept()
    with kept.hooks, torch.no_grad():
        compile(f)(x, w)
    return len(kept.boxes)


@case("Activation memory freed", leaf(4, 8), leaf(8, 8))
def test_nothing_saved_for_constant_inputs(compile, x, w):
    kept = Kept()
    w.requires_grad_(False)
    with kept.hooks:
        y = compile(f)(x, w)
    y.sum().backward()
    return len(kept.boxes), kept.num_alive()


@case("Activation memory freed", leaf(2, 4, 8), lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
def test_bytes_kept_by_a_transformer_layer(compile, x, layer):
    kept = Kept()
    with kept.hooks:
        y = compile(layer)(x)
    found = kept.num_bytes()
    y.sum().backward()
    return found


@case("Activation memory freed", leaf(4, 8), leaf(8, 8))
def test_inputs_not_kept_alive(compile, x, w):
    """exp saves its result, not its input."""
    y = compile(lambda x: x.exp())(x * 2)
    a = x * 2
    alive = weakref.ref(a)
    y = compile(lambda x: x.exp())(a)
    del a
    gc.collect()
    return alive() is None, y


@case("saved_tensors_hooks around the call", leaf(4, 8), leaf(8, 8))
def test_offload_as_numpy(compile, x, w):
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().numpy().copy(), torch.from_numpy)
    with hooks:
        y = compile(f)(x, w)
    y.sum().backward()


@case("saved_tensors_hooks around the call", leaf(4, 8), leaf(8, 8))
def test_hooks_inside_the_region(compile, x, w):
    @compile
    def g(x, w):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t + 1):
            hidden = torch.tanh(x @ w)
        return hidden.exp()

    g(x, w).sum().backward()


@case("saved_tensors_hooks around the call", leaf(4, 8), leaf(8, 8))
def test_unpack_counts(compile, x, w):
    """Each saved tensor is unpacked as often as eager unpacks it."""
    events = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: (events.append(tuple(t.shape)), t)[1]):
        y = compile(lambda x, w: F.gelu(x @ w).exp())(x, w)
    for _ in range(2):
        y.sum().backward(retain_graph=True)
    return [str(event) for event in sorted(events)]


@case("saved_tensors_hooks around the call", leaf(4, 8), leaf(8, 8))
def test_unpack_hook_that_raises(compile, x, w):
    def fail(tensor):
        raise ValueError("lost")

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, fail):
        y = compile(f)(x, w)
    y.sum().backward()


@case("saved_tensors_hooks around the call", leaf(4, 8), leaf(8, 8))
def test_double_backward_through_hooks(compile, x, w):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
        y = compile(f)(x, w)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    slope.square().sum().backward()


@case("The errors for a second backward", leaf(4, 8), leaf(8, 8), compare_messages=True)
def test_second_backward_error(compile, x, w):
    y = compile(f)(x, w)
    y.sum().backward()
    y.backward(torch.ones_like(y))


@case("The errors for in-place modification", leaf(4, 8), leaf(8, 8))
def test_input_modified_before_backward(compile, x, w):
    y = compile(f)(x, w)
    with torch.no_grad():
        w.add_(1)
    y.sum().backward()


@case("The errors for in-place modification", leaf(4, 8), leaf(8, 8))
def test_output_modified_before_backward(compile, x, w):
    y = compile(f)(x, w)
    y.add_(1)
    y.sum().backward()


@case("The errors for in-place modification", leaf(4, 8), leaf(8, 8))
def test_unsaved_input_modified_before_backward(compile, x, w):
    """exp saves its result only, so its input may change."""
    a = x * 1
    y = compile(lambda a: a.exp())(a)
    a.add_(1)
    y.sum().backward()


@case("The errors for in-place modification", leaf(4, 8), leaf(8, 8))
def test_modified_inside_the_region(compile, x, w):
    @compile
    def g(x, w):
        hidden = torch.exp(x @ w)
        y = hidden.sin()
        hidden.add_(1)
        return y

    g(x, w).sum().backward()


@case("The errors for in-place modification", leaf(4, 8), leaf(8, 8))
def test_modified_through_a_view(compile, x, w):
    y = compile(f)(x, w)
    with torch.no_grad():
        w[0].zero_()
    y.sum().backward()


@case("The errors for in-place modification", leaf(4, 8), leaf(8, 8))
def test_modified_through_data_is_not_noticed(compile, x, w):
    y = compile(f)(x, w)
    w.data.mul_(2)
    y.sum().backward()
