"""What Dynamo's graphs enter by plain calls is left again when tracing or running them fails."""

import pytest
import torch

import gradc
from gradc.torch_private.modes import autocast_nesting


def modes():
    return autocast_nesting(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


def test_a_region_that_cannot_be_traced_leaves_no_autocast_open():
    """It would keep autocast's copies of weights for ever: stale after the optimizer's next step."""

    @gradc.compile(fullgraph=True)
    def f(x):
        with torch.no_grad(), torch.autocast("cpu", torch.float16):
            x.add_(1)
        with torch.autocast("cpu", torch.float16):
            x.mul_(2)  # an input changed with gradient recording: no region can do that
        return x

    before = modes()
    with pytest.raises(gradc.FallbackError, match="gradient recording"):
        f(torch.ones(3, requires_grad=True) * 1)
    assert modes() == before


@pytest.mark.parametrize("backend", ["replay", "eager"])
@pytest.mark.parametrize("is_refused", [False, True])
def test_an_op_that_fails_leaves_no_mode(backend, is_refused):
    def f(a, n):
        with torch.no_grad(), torch.autocast("cpu", torch.float16):
            return a[n] @ a

    run, a, before = gradc.compile(f, backend=backend), torch.randn(3, 3), modes()
    if is_refused:
        a = torch.randn(3, 3)[:].requires_grad_()  # a leaf under autocast that is a view
    fallbacks = sum(gradc.counters["fallbacks"].values())
    run(a, torch.tensor([1, 2]))
    assert (sum(gradc.counters["fallbacks"].values()) > fallbacks) == is_refused
    with pytest.raises(IndexError):
        run(a, torch.tensor([7]))
    assert modes() == before


def test_a_view_in_inference_mode_that_requires_a_gradient():
    """Making a view of it, to see whether gradients flow through, records nothing there."""
    x = torch.randn(4, 4, requires_grad=True)
    run = gradc.compile(lambda x: x[:, :2] * 2)
    with torch.inference_mode():
        view = x[:2]
        assert view.requires_grad and view.is_leaf
        assert not run(view).requires_grad
