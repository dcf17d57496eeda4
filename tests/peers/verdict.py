"""What became of one program of a suite."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Verdict:
    """``differences`` from eager, one sentence each; ``fallbacks``: why parts ran eagerly."""

    name: str
    differences: tuple[str, ...]
    fallbacks: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{'differs' if self.differences else 'same'}: {self.name}", *(f"    {line}" for line in self.differences)]
        return "\n".join([*lines, *(f"    eagerly: {reason}" for reason in self.fallbacks)])
