"""Messages that a logger does not pass on: compiled code serves as long as it would not."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.misc import LoggingLoggerVariable

from gradc.torch_private.dynamo_patches.cached_functions import is_said_once
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.switches import standing_at
from gradc.torch_private.weaver import around

_QUESTIONS = "gradc_loggers"
_ASK = logging.Logger.isEnabledFor
_LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error", "critical")}


def pass_over_what_is_not_logged() -> Patch:
    """Take calls below the logger's level for nothing, guarded; ``isEnabledFor`` for what it says now, guarded."""
    return Patch(
        "pass_over_what_is_not_logged",
        "Dynamo ends the graph at every call of a logger, be its level off or not.",
        (around(LoggingLoggerVariable, "call_method", _call),),
    )


def _call(original: Method, self: Any, tx: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if _is_once(tx, self.value, name, args, kwargs):
        return ConstantVariable.create(None)
    level = _level_of(name, args, kwargs)
    if level is None or not _is_loggings(self.value, name):
        return original(self, tx, name, args, kwargs)
    is_enabled = self.value.isEnabledFor(level)
    if is_enabled and name != "isEnabledFor":
        return original(self, tx, name, args, kwargs)
    _guard(tx.output, self.value, name, level)
    return ConstantVariable.create(is_enabled if name == "isEnabledFor" else None)


def _is_once(tx: Any, logger: logging.Logger, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """``logger.warning_once("...")``, as transformers has it: a method in a ``functools.lru_cache``."""
    method = getattr(type(logger), name, None)
    is_cached = hasattr(method, "cache_info") and name not in vars(logger)
    if not is_cached or kwargs or not all(each.is_python_constant() for each in args):
        return False
    if not is_said_once(tx, method, (logger, *(each.as_python_constant() for each in args))):
        return False
    tx.output.guards.add(standing_at(f"{type(logger).__name__}.{name}", lambda: getattr(type(logger), name, None)))
    return True


def _level_of(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> int | None:
    """None for another method, and where Python would raise."""
    if name in _LEVELS:
        return _LEVELS[name] if args else None
    if name not in ("log", "isEnabledFor") or not args or (name == "isEnabledFor" and (len(args) > 1 or kwargs)):
        return None
    level = args[0].as_python_constant() if args[0].is_python_constant() else None
    return level if type(level) is int and (name == "isEnabledFor" or len(args) > 1) else None


def _is_loggings(logger: logging.Logger, name: str) -> bool:
    """The method, and the question that it asks, are nobody else's."""
    method, ask = getattr(logger, name), logger.isEnabledFor
    return getattr(method, "__func__", None) is getattr(logging.Logger, name) and getattr(ask, "__func__", None) is _ASK


def _guard(output: Any, logger: logging.Logger, name: str, level: int) -> None:
    """Once for each question in a graph. None is the answer of a logger whose method is another by now."""

    def is_enabled() -> bool | None:
        return logger.isEnabledFor(level) if _is_loggings(logger, name) else None

    guards = vars(output).setdefault(_QUESTIONS, {})
    key = id(logger), name, level
    if key not in guards:
        guards[key] = standing_at(f"logger {logger.name!r} is enabled for {logging.getLevelName(level)}", is_enabled)
    output.guards.add(guards[key])
