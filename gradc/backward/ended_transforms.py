"""Nodes of a transform that has ended, as those of a vjp have when it is pulled back: what their formulas find wrapped.

    as_once_ended: (TapeRecorder, nodes) -> a context in which the engine runs them with the calls that eager makes

C++ code that asks whether a tensor is "like a subclass" gets a yes for a tensor in a transform's wrapper, and what a node has
saved stays in one. But a call takes what is in the wrapper of a transform that has ended: of what it returns, the answer is no.
While a tape is recorded it is yes for every tensor. So the formulas that ask about what a call returned are replaced here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch

from gradc.backward.formulas import FORMULAS, Formula, Grads, Run
from gradc.errors import UnsupportedError
from gradc.tape.record import TapeRecorder
from gradc.tape.tape import Node
from gradc.torch_private.transforms import as_calls_see_it, is_in_transform

# What the formula asks about, or what that was made of: attributes of the node, and whether incoming gradients are among it.
_ASKED: dict[str, tuple[tuple[str, ...], bool]] = {
    "ProdBackward0": (("_saved_self",), False),
    "ProdBackward1": (("_saved_self",), False),
    "CumprodBackward0": (("_saved_self", "_saved_result"), True),
    "MaskedSelectBackward0": (("_saved_mask",), True),
    "TraceBackward0": ((), True),
    "LinalgMatrixExpBackward0": (("_saved_self",), True),
    "LinalgEigBackward0": (("_saved_eigenvectors",), True),
    "LinalgEighBackward0": (("_saved_eigenvectors",), True),
}
_UNKNOWN = Formula(lambda node, grads, made: made, is_differentiable=False)


@contextlib.contextmanager
def as_once_ended(tape: TapeRecorder, nodes: Iterable[Node]) -> Iterator[None]:
    """See the module's docstring.

    Raises:
        UnsupportedError: for a node whose formula has none here that does the same.
    """
    with contextlib.ExitStack() as stack:
        for node in nodes:
            if node.name() in _ASKED:
                stack.enter_context(_Run(tape, node).hooked())
        yield


class _Run(Run):
    """One run of one node, by its C++ code where all that this asks about is wrapped in eager, too."""

    def __init__(self, tape: TapeRecorder, node: Node) -> None:
        super().__init__(tape.recorder, node, FORMULAS.get(node.name(), _UNKNOWN), tape.where)
        self._is_replaced = False

    def before(self, grads: Grads) -> None:
        names, asks_for_grads = _ASKED[self.node.name()]
        given = [grad for grad in grads if grad is not None]
        saved = [as_calls_see_it(getattr(self.node, name)) for name in names]
        self._is_replaced = not any(map(is_in_transform, [*saved, *(given if asks_for_grads else ())]))
        if self._is_replaced:
            self._refuse(given, saved)
            super().before(grads)

    def after(self, made: Grads, grads: Grads) -> Grads | None:
        return super().after(made, grads) if self._is_replaced else None

    def _refuse(self, grads: list[torch.Tensor], saved: list[torch.Tensor]) -> None:
        is_recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in [*grads, *saved])
        is_known = self.formula is not _UNKNOWN and (self.formula.is_differentiable or not is_recorded)
        if not is_known or any(map(is_in_transform, grads)):
            raise UnsupportedError("function transform", f"{self.node.name()} once its transform has ended", self.line)
