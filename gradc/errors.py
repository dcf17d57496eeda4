"""The errors gradc raises. Each says what happened, where in the user's code, why, and what to do.

A user's mistake is a GradcError; a fault of gradc's own is an InternalError.
"""

from __future__ import annotations

OP_ERRORS = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError)  # what an op of torch's may raise


def is_passing(error: BaseException) -> bool:
    """True for what says nothing about the program: no memory left, too deep a recursion. Another attempt may not meet it."""
    import torch  # here, for the command line reads this module before it knows whether torch is needed

    return isinstance(error, (MemoryError, RecursionError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


class GradcError(Exception):
    """Base of every error that the user can cure: the message says what, where, why, and how."""


class ConfigError(GradcError, ValueError):
    """A setting or an argument has a value that gradc does not know; the message names the valid ones."""


class FallbackError(GradcError, RuntimeError):
    """Under ``fullgraph=True``, a part that would have run eagerly; the message holds the reason and the user's line."""


class CheckError(GradcError, AssertionError):
    """A value that is not eager's was found by ``raise_if_different`` or ``assert_parity``, or a check that proves nothing."""


class DifferenceWarning(UserWarning):
    """A verified call (``options={"verify": n}``) was not eager's; the message names what differed, and what follows."""


class VersionError(GradcError, ImportError):
    """gradc was built for, or checked against, another version of torch than the one that is imported."""


class InternalError(Exception):
    """A fault in gradc itself. The message names the pass and holds a dump: please report it."""


class UnsupportedError(Exception):
    """What a backend raises to leave a part to eager. gradc catches it, runs that part eagerly, and counts it.

    Arguments:
        kind: the counter's name under ``fallbacks``, e.g. ``"mutated input that requires grad"``.
        detail: what exactly was met, for the log.
        where: the user's source line, or "".
    """

    def __init__(self, kind: str, detail: str = "", where: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind, self.detail, self.where = kind, detail, where
