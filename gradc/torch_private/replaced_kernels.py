"""Kernels of ATen's that somebody has replaced, by ``torch.library.Library("aten", "IMPL")``: ops must reach the dispatcher.

    are_kernels_replaced:  () -> whether any is replaced just now, for tensors on the CPU
    note_replaced_kernels: the patch, which hears of each that is, and of those that are put back

gradc calls ATen's kernels for small tensors itself, and differentiates by its own formulas. No key of a call tells who else's
kernel the dispatcher would have found.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import library

from gradc.torch_private.patches import Method, Patch, Replace

# Kernels that a plain tensor on the CPU may come to. Those of Meta are many, and torch's own: no tensor with numbers does.
_KEYS = (
    "ADInplaceOrView",
    "Autocast",
    "AutocastCPU",
    "Autograd",
    "AutogradCPU",
    "BackendSelect",
    "CPU",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
    "CompositeImplicitAutograd",
)
Tell = Callable[[bool], None]

_are_replaced = False


def are_kernels_replaced() -> bool:
    return _are_replaced


def note_replaced_kernels(tell: Tell) -> Patch:
    """``tell``: called with what ``are_kernels_replaced`` is from then on."""
    make = functools.partial(_make, tell)
    return Patch(
        "note_replaced_kernels",
        "Which kernels are replaced torch keeps to itself, and a captured program would call those that were.",
        (
            Replace(library.Library, "impl", make),
            Replace(library.Library, "_destroy", make),
            Replace(library, "_del_library", make),
        ),
    )


def _make(tell: Tell, original: Method) -> Method:
    _look(tell)

    @functools.wraps(original)
    def change(*args: object, **kwargs: object) -> object:
        try:
            return original(*args, **kwargs)
        finally:
            if getattr(next(iter(args), None), "ns", "aten") == "aten":  # a library for ops of others has nothing to see
                _look(tell)

    return change


def _look(tell: Tell) -> None:
    global _are_replaced
    names = (name.split("/") for name in torch.library._impls)
    _are_replaced = any(namespace == "aten" and key in _KEYS for namespace, *_, key in names)
    tell(_are_replaced)
