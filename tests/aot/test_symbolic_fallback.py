"""A region of symbolic sizes whose backward must run as eager does: on a tape made again, with the sizes of the call."""

import pytest
import torch

from tests.oracle import check, leaf

grad = torch.autograd.grad


def test_gradient_that_is_neither_dense_nor_expanded():
    def step(compile, x):
        y = compile(lambda x: (x.tanh(), x.sin()[..., 1:]), dynamic=True)(x)
        strided = torch.empty_strided((4, 3), (9, 2)).normal_()
        return grad(y, x, [strided, torch.ones_like(y[1])])

    report = check(step, leaf(4, 3), allow_fallback=True)
    assert list(report.fallbacks) == ["gradient of a dynamic shape that is neither dense nor expanded"]


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
