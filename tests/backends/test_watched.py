"""Tools may watch what backends are given; while none does, a backend is itself."""

import torch

import gradc
from gradc.backends import eager, lookup_backend, watched


def noting(names, tag=""):
    """What a watcher makes of a backend: the names of its Programs are noted."""

    def wrap(lower):
        def lowered(program):
            names.append(tag + program.name)
            return lower(program)

        return lowered

    return wrap


def test_programs_are_seen_inside_and_not_after():
    names = []
    with watched(noting(names)):
        y = gradc.compile(torch.exp, backend="eager")(torch.ones(3, requires_grad=True))
        assert names == ["forward"]
        y.sum().backward(retain_graph=True)
        assert names == ["forward", "backward_0"]
    with torch.autocast("cpu", torch.bfloat16):  # another backward, of a region that was compiled inside
        y.sum().backward()
    assert names == ["forward", "backward_0"]
    assert lookup_backend("eager") is eager.lower


def test_watchers_nest_and_see_backends_that_are_registered_meanwhile():
    names = []
    with watched(noting(names, "outer ")), watched(noting(names, "inner ")):
        gradc.register_backend("registered_while_watched", eager.lower)
        gradc.compile(torch.sin, backend="registered_while_watched")(torch.ones(3))
    assert names == ["inner forward", "outer forward"]
