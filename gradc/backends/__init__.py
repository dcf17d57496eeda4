"""The backends that gradc ships, registered on import."""

from gradc.backends import eager, inductor
from gradc.backends.registry import list_backends, lookup_backend, register_backend

register_backend("eager", eager.lower)
register_backend("inductor", inductor.lower)

__all__ = ["list_backends", "lookup_backend", "register_backend"]
