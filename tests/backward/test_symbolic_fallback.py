"""A region of symbolic sizes whose backward must run as eager does: on a tape made again, with the sizes of the call."""

import pytest
import torch

from tests.oracle import check, leaf

grad = torch.autograd.grad


@pytest.mark.parametrize("stride", [(9, 2), (0, 1), (1, 0), (1, 4)])
def test_gradient_of_odd_strides(stride):
    """Strides that are not those of the shape are numbers, in a Program of their own."""

    def step(compile, x):
        f = compile(lambda x: (x.tanh(), x.sin()[..., 1:]), dynamic=True)
        found = []
        for n in (4, 3):
            y = f(x[:n])
            strided = torch.empty_strided((n, 3), stride).copy_(torch.randn(3).expand(n, 3))
            found += grad(y, x, [strided, torch.ones_like(y[1])])
        return found

    check(step, leaf(4, 3))


def test_backward_under_autocast_of_a_forward_without():
    """The tape made again is one without an autocast context around it, too. Found by the fuzzer."""

    def step(compile, x, w):
        def f(x, w):
            with torch.autocast("cpu", torch.float16):
                return (x @ w).tanh() * x.shape[0]

        y = compile(f, dynamic=True)(x, w)
        with torch.autocast("cpu", torch.bfloat16), torch.autograd.detect_anomaly(check_nan=False):
            return grad(y.sum(), (x, w))

    report = check(step, leaf(5, 6), leaf(6, 6), allow_fallback=True)
    assert report.fallbacks == {"anomaly mode during backward": 1}


@pytest.mark.parametrize("autocast", [False, True])
def test_anomaly_mode(autocast):
    def step(compile, x, w):
        f = compile(lambda x, w: torch.tanh(x @ w) * x.shape[0], dynamic=True)
        found = []
        for n in (4, 3, 4):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                y = f(x[:n], w).float().square().sum()
            with torch.autograd.detect_anomaly(check_nan=False):
                found.append(grad(y, (x, w)))
        return found

    report = check(step, leaf(5, 6), leaf(6, 6), allow_fallback=True)
    assert report.fallbacks == {"anomaly mode during backward": 3}


def test_second_order():
    def step(compile, x):
        f = compile(lambda x: x.cumprod(0).sin(), dynamic=True)
        found = []
        for n in (4, 3):
            (first,) = grad(f(x[:n, :n]).sum(), x, create_graph=True)
            found += [first.detach(), *grad(first.square().sum(), x)]
        return found

    report = check(step, leaf(5, 5), allow_fallback=True)
    assert report.fallbacks == {"derivative that cannot be traced": 2}
