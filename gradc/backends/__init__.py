"""The backends that gradc ships, registered on import."""

from gradc.backends import eager, inductor, replay
from gradc.backends.registry import Lower, Runner, list_backends, lookup_backend, register_backend, seen, watched
from gradc.options import DEFAULT_BACKEND

register_backend("eager", eager.lower)
register_backend("inductor", inductor.lower)
register_backend(DEFAULT_BACKEND, replay.lower)

__all__ = ["DEFAULT_BACKEND", "Lower", "Runner", "list_backends", "lookup_backend", "register_backend", "seen", "watched"]
