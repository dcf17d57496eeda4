"""What a user can ask of ``gradc.compile``, as one value that every room may read.

A leaf: imports nothing of gradc.
"""

from __future__ import annotations

import dataclasses

DEFAULT_BACKEND = "replay"
AUTO_BACKEND = "auto"
BACKENDS = (AUTO_BACKEND, "eager", "inductor", DEFAULT_BACKEND)  # those that gradc ships


@dataclasses.dataclass(frozen=True)
class CompileOptions:
    """The arguments of ``gradc.compile``, but the target; see there. Equal wishes are equal values.

    ``options`` are the extra ones by name, sorted.
    """

    backend: str = DEFAULT_BACKEND
    fullgraph: bool = False
    dynamic: bool | None = None
    memory_budget: float = 1.0
    options: tuple[tuple[str, object], ...] = ()

    @property
    def is_bitwise(self) -> bool:
        """False where the faster backend may be one with other bits than eager's."""
        return self.backend != AUTO_BACKEND or bool(dict(self.options).get("bitwise", True))


DEFAULTS = CompileOptions()
