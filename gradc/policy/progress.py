"""Tell somebody at a terminal that compiling goes on, while it does: nobody else, and nothing where it is over soon.

telling(tell): while inside, ``tell(seconds so far)`` is called twice a second, in a thread of its own
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

_EVERY = 0.5  # seconds


def is_at_terminal() -> bool:
    """True also in a notebook, where somebody waits as well."""
    return sys.stderr is not None and (sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel"))


@contextlib.contextmanager
def telling(tell: Callable[[float], None]) -> Iterator[None]:
    """See the module's docstring. Without a terminal no thread is started."""
    if not is_at_terminal():
        yield
        return
    begun, is_over = time.monotonic(), threading.Event()

    def run() -> None:
        while not is_over.wait(_EVERY):
            tell(time.monotonic() - begun)

    thread = threading.Thread(target=run, name="gradc: progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
