"""gradc: compiled PyTorch training with eager's gradients, bit for bit. The public surface; re-exports only."""

from gradc import compiled_autograd, testing
from gradc.backends import list_backends, register_backend
from gradc.config import config
from gradc.errors import ConfigError, FallbackError, GradcError
from gradc.frontend.api import compile
from gradc.frontend.control import disable, reset
from gradc.frontend.patches import patches
from gradc.journal import counters
from gradc.parity.check import check
from gradc.reporting.explain import explain
from gradc.reporting.report import report
from gradc.traces.profile import tracing
from gradc.traces.programs import programs

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
    "patches",
    "programs",
    "register_backend",
    "report",
    "reset",
    "testing",
    "tracing",
]
__version__ = "0.1.0"
