"""Formulas that write into the gradient they return, and on fake tensors make a new one instead: how often eager counts that.

NUM_WRITES: name of a node -> version counter of the gradient that it returns in eager
"""

from __future__ import annotations

_SCATTERED = 2  # into zeros, by a function of torch's that counts it once more
NUM_WRITES: dict[str, int] = {
    **dict.fromkeys(
        (
            "CummaxBackward0",
            "CumminBackward0",
            "KthvalueBackward0",
            "MaxBackward0",
            "MedianBackward1",
            "MinBackward0",
            "NanmedianBackward1",
        ),
        _SCATTERED,
    ),
    **dict.fromkeys(("AminmaxBackward0", "IndexSelectBackward0", "MaxBackward1", "MedianBackward0", "MinBackward1"), 1),
    "NanmedianBackward0": 1,
}
