"""Views that one op makes have one node, as in eager: made one by one, zeros were added to gradients, and -0.0 became 0.0."""

import threading

import pytest
import torch

import gradc
from gradc.bits import same_bits
from tests.oracle import check, leaf

SPLITS = {
    "split": lambda x: x.split(1),
    "split_with_sizes": lambda x: x.split_with_sizes([1, 3]),
    "unbind": lambda x: x.unbind(),
    "chunk": lambda x: x.chunk(2),
    "parts of parts": lambda x: (*x.chunk(2)[0].unbind(), x.chunk(2)[1]),
    "one of them": lambda x: x.unbind()[1:2],
}
USES = {
    "returned": lambda parts: parts,
    "the last used inside, too": lambda parts: (*parts, parts[-1] * 2),
    "the first returned, the last used": lambda parts: (parts[0], parts[-1] * 2),
    "the last returned, the first used": lambda parts: (parts[0].exp(), parts[-1]),
    "returned twice": lambda parts: (*parts, *parts),
}


def gradient_like(part):
    """Zeros of both signs among it."""
    return torch.where(torch.rand_like(part) > 0.5, -torch.rand_like(part), -torch.zeros_like(part))


@pytest.mark.parametrize("of", ["leaf", "no leaf", "intermediate"])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("split", SPLITS)
def test_zeros_keep_their_signs(split, use, of):
    def step(compile, x):
        inside = (lambda x: x * 3) if of == "intermediate" else (lambda x: x)
        parts = compile(lambda x: USES[use](SPLITS[split](inside(x))))(x * 2 if of == "no leaf" else x)
        for _ in range(2):
            torch.autograd.backward(parts, list(map(gradient_like, parts)), retain_graph=True)
        return parts, len({part.grad_fn for part in parts})

    check(step, leaf(4, 3), allow_fallback=of == "intermediate")


def test_threads_have_views_of_their_own():
    split = gradc.compile(lambda x: x.unbind())
    xs = [torch.rand(4, 3, requires_grad=True) for _ in range(8)]
    found = {}

    def run(number):
        for _ in range(50):
            parts = split(xs[number])
            (grad,) = torch.autograd.grad(parts, xs[number], [part.detach() for part in parts])
            found[number] = same_bits(grad, xs[number].detach()) and len({part.grad_fn for part in parts}) == 1

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(xs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(len(xs)), True)
