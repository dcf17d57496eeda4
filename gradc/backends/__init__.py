"""The backends that gradc ships, registered on import."""

from gradc.backends import eager, inductor, replay
from gradc.backends.registry import list_backends, lookup_backend, register_backend

register_backend("eager", eager.lower)
register_backend("inductor", inductor.lower)
register_backend("replay", replay.lower)

__all__ = ["list_backends", "lookup_backend", "register_backend"]
