"""Gradients inside of compiled code, at sizes that change: one that is found to be a number while it is captured, too."""

import pytest
import torch

import gradc
from gradc.ir import recorder
from tests.oracle import check, leaf


def penalized(x, w, scale, extra):
    """What is saved by ``* scale`` is unpacked by the first gradient, behind the sum with ``extra``."""
    out = (x @ w).tanh() * scale + extra
    loss = out.square().sum()
    loss = loss + 0.1 * torch.autograd.grad(loss, scale, create_graph=True)[0].square()
    (slope,) = torch.autograd.grad(loss, extra, create_graph=True)
    return loss + slope.square().sum()


@pytest.fixture(params=[False, True], ids=["symbol", "number"])
def is_found_to_be_a_number(request, monkeypatch):
    """Whether the sum compares the size with the width, as code of torch's may: where they are equal, it is a number."""
    if request.param:
        compared = recorder._are_alike_and_contiguous
        monkeypatch.setattr(recorder, "_are_alike_and_contiguous", lambda args: _compare(*args) and compared(args))


def _compare(first, second):
    """True; but Python has compared the first sizes, and the symbol is guarded."""
    if isinstance(second, torch.Tensor) and first.dim() > second.dim() == 1:
        bool(first.shape[0] == second.shape[0])
    return True


@pytest.mark.usefixtures("is_found_to_be_a_number")
@pytest.mark.parametrize("is_hooked", [True, False])
@pytest.mark.parametrize("sizes", [(5, 4, 3), (4, 4, 5), (5, 3, 6, 4)])
def test_a_size_that_is_the_width_of_a_parameter(sizes, is_hooked):
    """The gradient of ``w`` was wrong by an eighth and more at such a size, and nothing said so."""

    def step(compile, w, scale, extra):
        if is_hooked:  # the second gradient is then between two graphs
            extra.register_hook(lambda grad: grad * 0.5)
        compiled, losses = compile(penalized), []
        for size in sizes:
            x = torch.linspace(-1, 1, 6 * size).view(size, 6)
            losses.append(compiled(x, w, scale, extra))
            losses[-1].backward()
        return losses

    check(step, leaf(6, 4), leaf(1), leaf(4), allow_fallback=False)


def test_a_size_is_not_compared_with_a_width():
    """At a batch as long as a bias is wide all was captured once more."""
    weight, bias = torch.ones(6, 4, requires_grad=True), torch.ones(4, requires_grad=True)
    compiled = gradc.compile(lambda x: ((x @ weight).tanh() + bias).square().sum())
    for size in (5, 6):
        compiled(torch.ones(size, 6)).backward()
    known = gradc.counters["aot"].copy()
    compiled(torch.ones(4, 6)).backward()
    assert gradc.counters["aot"] == known
