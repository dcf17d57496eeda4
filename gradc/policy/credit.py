"""What captures of backward passes may cost: half a second more than replaying them has given back.

    Credit: allows() -> bool, pay(seconds), earn(seconds of a capture)

A capture takes as long as a hundred passes, and a hit saves less than the pass. So each hit gives back a hundredth of what its
capture took: a pass that comes again soon pays for itself, and for the next; passes that never come again cost half a second
in all, and the last of them.
Unlike a compilation, which may be put off, what is not captured now is another pass next time: no time that passes adds to it.
A trial of captured passes begins with a full credit: other graphs, of what ran compiled before, may have used it up.
"""

from __future__ import annotations

_SECONDS = 0.5
_SHARE = 0.01  # of a capture, that each hit gives back


class Credit:
    """See the module's docstring.

    Attributes:
        is_full: True if a hit gives nothing more: captures have paid.
        num_refills: how often all was as at the beginning: who does without captures for a while may look again.
    """

    def __init__(self) -> None:
        self.num_refills = 0
        self.refill()

    def refill(self) -> None:
        """As at the beginning."""
        self._left, self.is_full = _SECONDS, True
        self.num_refills += 1

    def allows(self) -> bool:
        return self._left > 0

    def pay(self, seconds: float) -> None:
        self._left -= seconds
        self.is_full = False

    def earn(self, seconds: float) -> None:
        """A capture that took ``seconds`` was of use."""
        self._left = min(_SECONDS, self._left + _SHARE * seconds)
        self.is_full = self._left == _SECONDS


CREDIT = Credit()
