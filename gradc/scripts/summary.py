"""What came of a script that ran compiled, in a few lines.

Outcome: str
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence

from gradc.journal import Fallback, Uncompiled, reason
from gradc.reporting.cures import cure_of

_FEWEST = 5  # steps that give a time
_MOST_SHOWN = 5  # of what ran eagerly


@dataclasses.dataclass(frozen=True)
class Outcome:
    """
    Attributes:
        num_steps: of the first optimizer.
        seconds: from the first line of the script to its end.
        eager, compiled: seconds from step to step, where nothing was compiled meanwhile.
        compile_seconds: of those steps in which something was.
        names: the classes of what was compiled.
        left_out: what ran eagerly, or was in no graph, each once.
        exit_code: what the script gave to ``sys.exit``, if it did.
        doubt: why the times may be wrong, or "".
    """

    num_steps: int
    seconds: float
    eager: tuple[float, ...]
    compiled: tuple[float, ...]
    compile_seconds: float
    names: tuple[str, ...]
    left_out: tuple[Fallback | Uncompiled, ...]
    exit_code: str | int | None = None
    doubt: str = ""

    def __str__(self) -> str:
        return "\n".join([f"gradc run: done in {self.seconds:.1f} s.", *self._times(), *self._left_out()])

    @property
    def _is_compiled(self) -> bool:
        """Whether the script came to a step that was compiled."""
        return bool(self.compiled or self.compile_seconds)

    def _times(self) -> Iterator[str]:
        if not self.num_steps:
            yield "  No optimizer made a step, so nothing was compiled."
            return
        if not self._is_compiled:
            yield f"  Nothing was compiled: the first 5 to 50 steps run in eager, and it made {self.num_steps}. Give it more."
            return
        if self.names:
            yield f"  compiled: {', '.join(dict.fromkeys(self.names))}; compiling took {self.compile_seconds:.1f} s"
        if min(len(self.eager), len(self.compiled)) < _FEWEST:
            yield "  too few steps to tell what that brought: some run in eager first, and some compile"
            return
        times = statistics.median(self.eager) / statistics.median(self.compiled)
        faster = f"{times:.2f} times as fast" if times >= 1 else f"{1 / times:.2f} times as long"
        yield f"  a step: {_spread(self.eager)} in eager, {_spread(self.compiled)} compiled: {faster}"
        if self.doubt:
            yield f"  {self.doubt}"

    def _left_out(self) -> Iterator[str]:
        if self._is_compiled and not self.left_out:
            yield "  nothing ran eagerly"
        for found in self.left_out[:_MOST_SHOWN]:
            how = "graph break" if isinstance(found, Uncompiled) and found.is_break else "ran eagerly"
            yield f"  {how}: {reason(found.kind, found.detail)}".splitlines()[0]
            yield from (f"    {text}" for text in (found.where, found.advice or cure_of(found.kind, found.detail)) if text)
        if len(self.left_out) > _MOST_SHOWN:
            yield f"  and {len(self.left_out) - _MOST_SHOWN} more: gradc explain names them"


def _spread(seconds: Sequence[float]) -> str:
    """ "12.1 ms (11.8 to 13.0, of 20)": the median, and the quartiles."""
    low, middle, high = (1000 * each for each in statistics.quantiles(seconds, n=4, method="inclusive"))
    return f"{middle:.3g} ms ({low:.3g} to {high:.3g}, of {len(seconds)})"
