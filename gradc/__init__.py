"""gradc: compiled PyTorch training with eager's gradients, bit for bit. The public surface; re-exports only."""

from gradc.backends import list_backends, register_backend
from gradc.config import config
from gradc.engine import compiled_autograd
from gradc.errors import ConfigError, FallbackError, GradcError
from gradc.frontend.compile import compile
from gradc.frontend.control import disable, reset
from gradc.report.check import check
from gradc.report.explain import explain
from gradc.report.record import counters

__all__ = [
    "ConfigError",
    "FallbackError",
    "GradcError",
    "check",
    "compile",
    "compiled_autograd",
    "config",
    "counters",
    "disable",
    "explain",
    "list_backends",
    "register_backend",
    "reset",
]
__version__ = "0.1.0"
