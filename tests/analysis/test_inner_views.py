"""Outputs that are views of a value nobody sees, and that the region uses itself: written into, they change its history."""

import pytest
import torch

from tests.oracle import check, leaf

INSIDE = {
    "once": lambda view: [view * 0.1],
    "twice": lambda view: [view * 0.1, view * 0.7],
    "stacked": lambda view: [torch.stack([view, view * 0.3])],
    "through a view": lambda view: [view[1:] * 0.1, view[:-1] * 0.7, view * 3],
    "saved": lambda view: [view.sin(), view * 0.3],
}
VIEWS = {
    "flat": lambda x: (x * 3).view(-1),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x)[1:],
    "transposed": lambda x: (x * 3).T,
    "written before": lambda x: (x * 3).mul_(1.5).add_(1).view(2, -1),
}
OUTSIDE = {
    "nothing": lambda view: view,
    "write": lambda view: view.mul_(2),
    "two writes": lambda view: view.mul_(2).add_(view.detach() * 0.1),
    "write to a part": lambda view: view[1:].mul_(2),
    "write without grad": lambda view: view.data.mul_(2),
    "write to a detached handle": lambda view: view.detach().mul_(2),
}


@pytest.mark.parametrize("outside", OUTSIDE)
@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("made", VIEWS)
def test_as_in_eager(made, inside, outside):
    def step(compile, x):
        @compile()
        def f(x):
            view = VIEWS[made](x)
            return view, *INSIDE[inside](view)

        events = []
        for asked in (True, False):
            view, *others = f(x)
            view.register_hook(lambda grad: events.append(grad))
            OUTSIDE[outside](view)
            events.append(view._is_view())
            loss = view.cos().sum() + sum(other.square().sum() for other in others)
            try:
                events.append(torch.autograd.grad(loss, (view, x) if asked else x, allow_unused=True))
            except RuntimeError as error:
                events.append(str(error).split(":")[0])
        return events

    check(step, leaf(4, 4))


@pytest.mark.parametrize("options", [{"dynamic": True}, {"backend": "eager"}])
def test_sizes_and_backends(options):
    def step(compile, x):
        @compile(**options)
        def f(x):
            view = (x * 3).view(-1)
            return view, torch.cat([view, view])

        found = []
        for n in (4, 3):
            view, other = f(x[:n])
            view.mul_(2)
            found += torch.autograd.grad(view.sin().sum() + other.square().sum(), x)
        return found

    check(step, leaf(4, 4))


@pytest.mark.parametrize("others", [lambda view: (view * 0.1, view * 0.3), lambda view: (view * 0.1,)])
def test_second_order(others):
    """There one use inside is enough. Found by the fuzzer."""

    def step(compile, x):
        f = compile(lambda x: (view := torch.einsum("ij,kj->ik", x, x), *others(view)))
        view, *others = f(x)
        view[0] = view[1] * 2
        loss = view.sin().sum() + sum(other.sum() for other in others)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), x)

    check(step, leaf(4, 4))
