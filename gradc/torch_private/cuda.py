"""What of torch's private names concerns GPUs.

hold: () -> None
"""

from __future__ import annotations

import torch

_CYCLES = 200_000  # some 0.1 ms: longer than the host takes to ask for one kernel


def hold() -> None:
    """Keep the current stream of the current GPU busy for a moment: what is asked for next waits, and then runs at once."""
    torch.cuda._sleep(_CYCLES)
