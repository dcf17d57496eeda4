"""Lazily conjugate tensors come into a region as they are: inputs, gradients, and gradients of gradients."""

import torch

from tests.oracle import check, leaf

LEAVES = [leaf(3, 3, dtype=torch.complex64)] * 2


def test_inputs():
    def step(compile, x, w):
        @compile
        def f(x, w):
            return x * w + x @ w.mT, x.t()

        results = []
        for given in (x.conj(), x, x.conj() * 1, x.mH, (x * 2).conj(), x[1:].conj()[:, :1].expand(2, 3)):
            given = given if given.shape == w.shape else torch.cat([given, given])[:3]
            out, view = f(given, w)
            results += [out, view, torch.autograd.grad(out.sum().abs() + view.abs().sum(), [x, w])]
        return results

    check(step, *LEAVES)


def test_gradients_to_third_order():
    def step(compile, x, w):
        @compile
        def f(x, w):
            return torch.exp(x) * w, x @ w

        results = []
        for is_lazy in (True, False, True):
            outs = f(x, w)
            given = torch.linspace(-1, 1, 9).view(3, 3).to(x.dtype).requires_grad_()
            tangent = given.conj() if is_lazy else given
            first = torch.autograd.grad(outs, [x, w], [tangent, tangent], create_graph=True)
            lazy = [grad.detach().conj() for grad in first]
            second = torch.autograd.grad(first, [x, w, given], lazy, create_graph=True)
            lazy = [grad.detach().conj() for grad in second]
            third = torch.autograd.grad(second, [x, w, given], lazy, allow_unused=True)
            results += [*first, *second, *third]
        return results

    check(step, *LEAVES)


def test_lazy_negatives():
    """The imaginary part of a lazy conjugate is a lazy negative."""

    def step(compile, x, w):
        @compile
        def f(x, w):
            return torch.exp(x) * w

        results = []
        for given in (x.conj().imag, x.imag, x.conj().imag.t()):
            out = f(given, w.real)
            tangent = w.conj().imag
            first = torch.autograd.grad(out, [x, w], tangent, create_graph=True)
            results += [out, *first, *torch.autograd.grad(first, [x, w], [grad.detach().conj() for grad in first])]
        return results

    check(step, *LEAVES)
