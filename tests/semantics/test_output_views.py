"""What a region returns is a view of what it is in eager: its flag and base, writes through both ways, errors of writes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.compilers import find
from tests.oracle import Maker, check, constant, leaf

NATIVE, PYTHON = find("gradc"), find("gradc:eager")
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view": lambda x: x.view(6, 4),
    "reshape": lambda x: x.reshape(2, 12),
    "t": lambda x: x.t(),
    "T": lambda x: x.T,
    "transposed_part": lambda x: x.t()[1:3],
    "row": lambda x: x[1],
    "part": lambda x: x[1:, ::2],
    "expand": lambda x: x[:, :1].expand(4, 5),
    "diagonal": lambda x: x.diagonal(),
    "as_strided": lambda x: x.as_strided((2, 3), (6, 2), 1),
    "squeeze": lambda x: x.unsqueeze(0).squeeze(0),
    "bits": lambda x: x.view(torch.int32),
    "detach": lambda x: x.detach(),
    "detached_part": lambda x: x.detach()[0],
    "first_of_chunks": lambda x: x.chunk(2)[0],
    "unbound": lambda x: x.unbind()[1],
    "swapped": lambda x: x.swapaxes(0, 1).unflatten(0, (2, 3)),
    "complex": lambda x: torch.view_as_complex(x.view(4, 3, 2)),
    "real": lambda x: torch.view_as_complex(x.view(4, 3, 2)).real,
    "conjugate": lambda x: torch.view_as_complex(x.view(4, 3, 2)).conj(),
}
DIFFERENTIABLE = [name for name in VIEWS if name != "bits"]
RETURNED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "alone": lambda root, view: view,
    "with_the_root": lambda root, view: (view, root),
    "with_a_use": lambda root, view: (view, root.exp()),
    "with_its_use": lambda root, view: (view, view.sum()),
}


def described(result: Any) -> list[Any]:
    """What outside code can ask of each tensor, and the tensors."""
    results = result if isinstance(result, tuple) else (result,)
    flags = [
        (one._is_view(), one._base is None, one.requires_grad, one.is_leaf, one.is_inference() or one._version)
        for one in results
    ]
    return [flags, [one._base for one in results], *results]


def written(view: torch.Tensor, by: Any) -> str:
    """Writes into the view, then into its base; returns what was refused."""
    refused = []
    for tensor in (view, view._base):
        try:
            if tensor is not None:
                tensor.mul_(by)
        except RuntimeError as error:
            refused.append(str(error))
    return "\n".join(refused)


def check_view(view: Any, returned: str, x: Maker, compiler: Any, around: Any = contextlib.nullcontext, by: Any = 3) -> None:
    def step(compile: Any, x: torch.Tensor, w: torch.Tensor) -> Any:
        def f(x: torch.Tensor) -> Any:
            with around():
                root = x * 2
                return RETURNED[returned](root, view(root))

        result = compile(f)(x)
        before = described(result)
        out = result[0] if isinstance(result, tuple) else result
        factor = w.sum() if by == "a leaf" else by
        refused = written(out, factor) if by != "nothing" else ""
        if out.requires_grad:
            out.abs().sum().backward()
        return before, refused, described(result)

    check(step, x, leaf(2), compiler=compiler, compare_messages=True, allow_fallback=True)


WAYS = [*((NATIVE, returned) for returned in RETURNED), (PYTHON, "alone")]
each_way = pytest.mark.parametrize(("compiler", "returned"), WAYS, ids=[f"{returned}-{one.name}" for one, returned in WAYS])
each_view = pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)


@each_way
@each_view
def test_without_gradients(view, returned, compiler):
    check_view(view, returned, constant(4, 6), compiler)


@each_view
def test_written_with_what_requires_a_gradient(view):
    check_view(view, "alone", constant(4, 6), NATIVE, by="a leaf")


@each_way
@each_view
def test_under_no_grad(view, returned, compiler):
    """A view made under no_grad may not be written into with gradients recorded, where these would flow."""
    check_view(view, returned, leaf(4, 6), compiler, torch.no_grad, by="a leaf")


@each_view
def test_in_inference_mode(view):
    check_view(view, "alone", constant(4, 6), NATIVE, torch.inference_mode, by="nothing")


@each_way
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_with_gradients(name, returned, compiler):
    check_view(VIEWS[name], returned, leaf(4, 6), compiler)
