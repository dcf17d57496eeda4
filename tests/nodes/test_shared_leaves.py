"""A leaf that a region uses several times: its gradients are added up inside, where nobody can tell; and memory."""

import pytest
import torch
from torch import nn

import gradc
from benchmarks.common import peak_bytes
from tests.observe import same_with_strides


def recurrent(x, w):
    for _ in range(5):
        x = torch.tanh(x @ w)
    return x.square().sum()


def both(function, run):
    """What ``run`` returns for the eager and for the compiled function, on equal inputs."""
    results = []
    for compile in (lambda f: f, gradc.compile):
        torch.manual_seed(0)
        results.append(run(compile(function)))
    return results


def assert_equal(results):
    assert same_with_strides(*map(list, results))


def fresh():
    return torch.randn(3, 4), torch.randn(4, 4).requires_grad_()


def test_one_leaf_used_many_times():
    def run(function):
        x, w = fresh()
        function(x, w).backward()
        first = w.grad.clone()
        function(x, w).backward()
        return first, w.grad

    assert_equal(both(recurrent, run))


def test_another_node_sends_gradients_in_between():
    def run(function):
        x, w = fresh()
        (function(x, w) * (w * w).sum() + function(x + 1, w)).backward()
        return (w.grad,)

    assert_equal(both(recurrent, run))


def test_several_backwards_and_partial_ones():
    def run(function):
        x, w = fresh()
        loss, other = function(x, w), function(x * 2, w)
        (first,) = torch.autograd.grad(loss, w, retain_graph=True)
        loss.backward(retain_graph=True)
        second = w.grad.clone()
        (loss + other).backward()
        return first, second, w.grad

    assert_equal(both(recurrent, run))


def test_a_hook_on_the_node_sees_what_leaves_it():
    def run(function):
        x, w = fresh()
        loss = function(x, w)
        seen = []
        loss.grad_fn.register_hook(lambda grad_inputs, grad_outputs: seen.append(grad_outputs[0].clone()))
        loss.backward()
        return seen[0], w.grad

    assert_equal(both(recurrent, run))


def test_gradients_that_are_also_read_elsewhere():
    def function(x, w, v):
        y = w + v  # one gradient goes to w and to v
        return (y * x).sum() + (w * x).sum() + (v * x).sum() + (w.t() @ v).sum()

    def run(compiled):
        x, w = torch.randn(4, 4), torch.randn(4, 4).requires_grad_()
        v = torch.randn(4, 4).requires_grad_()
        compiled(x, w, v).backward()
        return w.grad, v.grad

    assert_equal(both(function, run))


def test_views_of_one_gradient_are_not_added_in_place():
    def function(w):
        return (w @ w.t()).sum() + (w.t() @ w).square().sum()

    def run(compiled):
        w = torch.randn(4, 4).requires_grad_()
        compiled(w).backward()
        return (w.grad,)

    assert_equal(both(function, run))


class Unrolled(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(32, 64)

    def forward(self, inputs):
        h = c = inputs.new_zeros(16, 64)
        for x in inputs.unbind(0):
            h, c = self.cell(x, (h, c))
        return h.square().mean()


def attention():
    return nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)


@pytest.mark.parametrize("make, shape", [(Unrolled, (16, 16, 32)), (attention, (4, 64, 64))], ids=["lstm", "attention"])
def test_peak_memory_is_eagers(make, shape):
    def peak(compile):
        torch.manual_seed(0)
        model, x = make(), torch.randn(shape)
        run, parameters = compile(model), list(model.parameters())

        def step():
            run(x).sum().backward()
            for parameter in parameters:
                parameter.grad = None

        step()
        return peak_bytes(step)

    assert peak(gradc.compile) <= 1.02 * peak(lambda model: model)


@pytest.mark.parametrize("num_times", [1, 2, 3])
def test_gradients_in_other_layouts_that_are_added_to_one(num_times):
    """They are not added up inside. Without the engine each was added to what the leaf had already, one by one."""

    def penalty(net, x):
        out = net(x)
        (slope,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        return out.square().mean() + slope.sin().mean()

    def step(net, x):
        loss = penalty(net, x)
        for number in range(num_times):
            loss.backward(retain_graph=number < num_times - 1)
        return loss.detach()

    def run(function):
        net = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.Flatten(), nn.Linear(18, 4))
        return function(net, torch.randn(4, 2, 3, 3, requires_grad=True)), *(p.grad for p in net.parameters())

    assert_equal(both(step, run))
