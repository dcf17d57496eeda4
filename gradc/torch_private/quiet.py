"""What torch logs of what gradc handles and counts: left out, unless torch's logs were asked for.

quiet: context manager around what gradc compiles          leave_out_handled_errors: () -> Patch
saying_only_once: context manager around tracing
recorded_warnings: context manager -> what is warned of inside      warn_again: what was warned of -> said to the user
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import logging
import warnings
from collections.abc import Iterable, Iterator

import torch

from gradc.torch_private.patches import Patch
from gradc.torch_private.transforms import ADVICE_OF_VMAP

# Of fake tensors; of symbols; and of Tensor.item(), at which Dynamo's graph ends, with advice for other compilers.
_LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.recording", "torch._dynamo.variables.tensor")
_is_quiet: contextvars.ContextVar[bool] = contextvars.ContextVar("_is_quiet", default=False)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Errors of tracing inside are gradc's to handle, in this thread: eager runs what they came from, and it is counted."""
    token = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(token)


@contextlib.contextmanager
def saying_only_once() -> Iterator[None]:
    """What torch's C++ says once in a process may be said inside; under ``torch.set_warn_always`` each run says it instead."""
    if not torch.is_warn_always_enabled():
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", ADVICE_OF_VMAP)  # which no run says
        yield


@contextlib.contextmanager
def recorded_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """What is warned of inside, each time, is collected; nobody sees it."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield warned


def warn_again(warned: Iterable[warnings.WarningMessage]) -> None:
    """What was collected is said, where it was said first."""
    for warning in warned:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


class _Unless(logging.Filter):
    """Lets records through, unless they are of what gradc handles and nobody asked for more than warnings."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _is_quiet.get() or logging.getLogger(record.name).isEnabledFor(logging.INFO)


@dataclasses.dataclass(frozen=True)
class Filtered:
    """Loggers with a filter of gradc's; known by the name of its class, also where this module was loaded again."""

    names: tuple[str, ...]

    def missing(self) -> str:
        """Nothing: a logger is made by who asks for it."""
        return ""

    def apply(self, patch: str) -> None:
        for name in self.names:
            logging.getLogger(name).addFilter(_Unless())

    def undo(self, patch: str) -> None:
        for name in self.names:
            logger = logging.getLogger(name)
            logger.filters[:] = [found for found in logger.filters if type(found).__qualname__ != _Unless.__qualname__]

    def is_applied(self, patch: str) -> bool:
        filters = (logging.getLogger(name).filters for name in self.names)
        return all(any(type(found).__qualname__ == _Unless.__qualname__ for found in of_one) for of_one in filters)

    def __str__(self) -> str:
        return f"filters of the logs {', '.join(self.names)}"


def leave_out_handled_errors() -> Patch:
    return Patch(
        "leave_out_handled_errors",
        "Fake tensors log each error with its traceback, and Dynamo where it ends a graph; gradc runs the part as eager does.",
        (Filtered(_LOGGERS),),
    )
