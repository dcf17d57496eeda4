"""The same in several threads at once.

in_threads: (number, function) -> what it returned in each
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def in_threads(number: int, function: Callable[[], Any]) -> list[Any]:
    """What ``function`` returns in each of so many threads that begin together."""
    results, barrier = [], threading.Barrier(number)

    def run() -> None:
        barrier.wait()
        results.append(function())

    threads = [threading.Thread(target=run) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == number, "one raised"
    return results
