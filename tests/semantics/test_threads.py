"""Threads: backward from another thread, several threads in training, re-entrant backward, fork."""

from __future__ import annotations

import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.oracle import leaf
from tests.semantics.registry import case

THREADS = "Backward from another thread"


def f(x, w):
    return torch.tanh(x @ w).exp()


def in_thread(function):
    """Run ``function`` in a thread of its own and return its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def in_threads(functions):
    """Run all at once; their results, in order."""
    results = [None] * len(functions)

    def run(number):
        results[number] = functions[number]()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@case(THREADS, leaf(4, 6), leaf(6, 6))
def test_backward_from_another_thread(compile, x, w):
    y = compile(f)(x, w)
    in_thread(lambda: y.sum().backward())


@case(THREADS, leaf(4, 6), leaf(6, 6))
def test_forward_in_another_thread(compile, x, w):
    g = compile(f)
    y = in_thread(lambda: g(x, w))
    y.sum().backward()
    return y


@case(THREADS, leaf(4, 6), leaf(6, 6))
def test_backward_in_another_thread_under_autocast(compile, x, w):
    """Autocast is of a thread: what is active here does not count there."""
    with torch.autocast("cpu", torch.bfloat16):
        y = compile(f)(x, w)
        in_thread(lambda: y.sum().backward())


@case("several threads training at once", leaf(4, 6), leaf(4, 6), leaf(4, 6), leaf(4, 6))
def test_four_threads_one_function(compile, *xs):
    w = torch.randn(6, 6)
    g = compile(f)

    def train(x):
        for _ in range(5):
            (slope,) = torch.autograd.grad(g(x, w).sum(), x)
            with torch.no_grad():
                x -= 0.01 * slope

    in_threads([lambda x=x: train(x) for x in xs])
    return [x.detach() for x in xs]


@case("several threads training at once", leaf(4, 6))
def test_four_threads_four_models(compile, x):
    models = [nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, n + 1)) for n in range(4)]

    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        g = compile(model)
        for _ in range(4):
            optimizer.zero_grad()
            g(x.detach()).square().mean().backward()
            optimizer.step()

    in_threads([lambda model=model: train(model) for model in models])
    return [list(model.parameters()) for model in models]


@case("several threads training at once", leaf(4, 6), leaf(6, 6))
def test_two_backwards_of_one_graph_at_once(compile, x, w):
    y = compile(f)(x, w)
    return in_threads([lambda: torch.autograd.grad(y.sum(), (x, w), retain_graph=True)] * 2)


class Reenter(torch.autograd.Function):
    """Its backward runs a backward of its own, through a compiled function."""

    @staticmethod
    def forward(ctx, x, inner):
        ctx.inner = inner
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            ctx.inner(leaf).sum().backward()
        return grad * leaf.grad, None


@case("re-entrant backward", leaf(4, 6), leaf(6, 6))
def test_reentrant_backward(compile, x, w):
    g = compile(f)
    y = g(Reenter.apply(g(x, w), lambda t: g(t, w)), w)
    y.sum().backward()
    return y


@case("re-entrant backward", leaf(4, 6), leaf(6, 6))
def test_backward_from_a_hook(compile, x, w):
    g = compile(f)
    y = g(x, w)
    other = torch.ones(4, 6, requires_grad=True)
    y.register_hook(lambda grad: g(other, w.detach()).sum().backward())
    y.sum().backward()
    return other.grad


class Samples(Dataset):
    """Each sample is a gradient, taken with the compiled function in the worker process."""

    def __init__(self, function):
        self.function = function

    def __len__(self):
        return 4

    def __getitem__(self, number):
        x = torch.full((4, 6), float(number), requires_grad=True)
        self.function(x).sum().backward()
        return x.grad


@case("fork after compile", leaf(6, 6))
def test_data_loader_workers(compile, w):
    w = w.detach()
    g = compile(lambda x: f(x, w))
    g(torch.ones(4, 6, requires_grad=True)).sum().backward()
    return list(DataLoader(Samples(g), batch_size=2, num_workers=2, multiprocessing_context="fork"))
