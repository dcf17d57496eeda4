"""The backends that gradc ships, registered on import.

lower_of: CompileOptions -> Lower
"""

from gradc.backends import auto, eager, inductor, replay
from gradc.backends.registry import Lower, Runner, list_backends, lookup_backend, register_backend, seen, watched
from gradc.options import AUTO_BACKEND, DEFAULT_BACKEND, CompileOptions

register_backend(AUTO_BACKEND, replay.lower)  # of those with eager's bits it is always the faster, but for eager itself
register_backend("eager", eager.lower)
register_backend("inductor", inductor.lower)
register_backend(DEFAULT_BACKEND, replay.lower)

__all__ = [
    "DEFAULT_BACKEND", "Lower", "Runner", "list_backends", "lookup_backend", "lower_of", "register_backend", "seen", "watched",
]  # fmt: skip


def lower_of(options: CompileOptions) -> Lower:
    """What makes Programs run under these options.

    Raises:
        ConfigError: for a backend that is not known.
    """
    return lookup_backend(options.backend) if options.is_bitwise else seen(auto.lower)
