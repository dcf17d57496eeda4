"""Gradients inside of compiled code, at sizes that change: one that is found to be a number while it is captured, too."""

import pytest
import torch

from tests.oracle import check, leaf


def penalized(x, w, scale, extra):
    """What is saved by ``* scale`` is unpacked by the first gradient, behind the sum with ``extra``."""
    out = (x @ w).tanh() * scale + extra
    loss = out.square().sum()
    loss = loss + 0.1 * torch.autograd.grad(loss, scale, create_graph=True)[0].square()
    (slope,) = torch.autograd.grad(loss, extra, create_graph=True)
    return loss + slope.square().sum()


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
