"""All behaviours, from the files that they lie in.

BEHAVIOURS: list of Behaviour
"""

from tests.peers import engine, functions, hooks, user_ops, views  # noqa: F401  (each registers its own)
from tests.peers.registry import BEHAVIOURS, WAYS

__all__ = ["BEHAVIOURS", "WAYS"]
