"""gradc: compiled PyTorch training with the gradients of eager, bit for bit. The public surface; re-exports only.

Importing it is cheap: each name is fetched from its home when it is first asked for. Dynamo, which `compile` needs, takes
longer to import than torch itself; torch, too, imports it at the first `torch.compile`.
"""

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

from gradc.config import config
from gradc.errors import ConfigError, FallbackError, GradcError

if TYPE_CHECKING:
    from gradc import compiled_autograd, testing
    from gradc.backends import list_backends, register_backend
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

_HOMES = {
    "check": "gradc.parity.check",
    "compile": "gradc.frontend.api",
    "counters": "gradc.journal",
    "disable": "gradc.frontend.control",
    "explain": "gradc.reporting.explain",
    "list_backends": "gradc.backends",
    "patches": "gradc.frontend.patches",
    "programs": "gradc.traces.programs",
    "register_backend": "gradc.backends",
    "report": "gradc.reporting.report",
    "reset": "gradc.frontend.control",
    "tracing": "gradc.traces.profile",
}


def __getattr__(name: str) -> Any:
    """A name of the surface, or a module of gradc's, when it is first asked for."""
    if home := _HOMES.get(name):
        value = getattr(importlib.import_module(home), name)
    elif name.startswith("_") or importlib.util.find_spec(f"gradc.{name}") is None:
        raise AttributeError(f"module 'gradc' has no attribute {name!r}. It has: {', '.join(__all__)}.")
    else:
        value = importlib.import_module(f"gradc.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _capture_everywhere(is_on: bool) -> None:
    """Whoever sets `config.compiled_autograd`, or GRADC_COMPILED_AUTOGRAD=1, need not ask for anything else."""
    if is_on:
        importlib.import_module("gradc.compiled_autograd")


config.watch("compiled_autograd", _capture_everywhere)
_READERS = (("GRADC_LOGS", "gradc.journal"), ("GRADC_VERIFY", "gradc.ir.verify"), ("TORCH_TRACE", "gradc.traces"))
for _variable, _reader in _READERS:
    if os.environ.get(_variable):  # who sets one is told at once what is wrong with it; a trace holds all that is captured
        importlib.import_module(_reader)
