"""The runs of a check, counted: somebody who waits for more than two seconds is told which goes on, and so is who interrupts.

    Stages().run("in eager"): a context, for each run
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from gradc.policy.progress import is_at_terminal, telling

_LONG = 2.0  # seconds, of all runs so far
_CLEAR = "\r\033[K"


def in_words(is_eager: bool) -> str:
    return "in eager" if is_eager else "compiled"


class Stages:
    """``number``: of the runs that were begun."""

    def __init__(self) -> None:
        self.number, self._begun, self._is_shown = 0, time.monotonic(), False

    @contextlib.contextmanager
    def run(self, what: str) -> Iterator[None]:
        """
        Raises:
            KeyboardInterrupt: if it is interrupted; the text says in which run.
        """
        self.number += 1
        stage = f"run {self.number}, {what}"
        try:
            with telling(lambda seconds: self._show(stage)):
                yield
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"{stage}, after {self._seconds():.0f} s") from None
        finally:
            if self._is_shown:
                print(end=_CLEAR, file=sys.stderr, flush=True)
                self._is_shown = False

    def _show(self, stage: str) -> None:
        if is_at_terminal() and self._seconds() > _LONG:
            self._is_shown = True
            print(end=f"{_CLEAR}gradc check: {stage}, {self._seconds():.0f} s", file=sys.stderr, flush=True)

    def _seconds(self) -> float:
        return time.monotonic() - self._begun
