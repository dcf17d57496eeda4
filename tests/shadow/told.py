"""What shadow mode tells and counts in this process, beside its warnings and ``gradc.counters``: tests clear those.

listen: () -> None        told: the differences        tally: how much was verified, and why the rest was not
"""

from __future__ import annotations

import collections
from typing import Any

told: list[str] = []
tally: collections.Counter[str] = collections.Counter()


def listen() -> None:
    from gradc.shadow import verify  # here, for gradc reads its environment when it is imported

    tell, count = verify._Verifier._tell, verify.count

    def tell_and_note(self: Any, found: Any, consequence: str) -> None:
        told.append(f"{self.name}: {found}")
        tell(self, found, consequence)

    def count_twice(kind: str, detail: str) -> None:
        tally[detail] += 1
        count(kind, detail)

    verify._Verifier._tell = tell_and_note  # type: ignore[method-assign]
    verify.count = count_twice  # type: ignore[attr-defined]
