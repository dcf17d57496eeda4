"""The settings, and how to change them: globally, or inside a ``with``, per thread.

    gradc.config.backward_pass_autocast = "off"                 # from here on, in every thread
    with gradc.config.patch(backward_pass_autocast="off"): ...  # inside, in this thread; restored on error
    @gradc.config.patch(compiled_autograd=True)                 # the same, as a decorator

A leaf: imports nothing of gradc but errors.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Callable
from typing import Any

from gradc.errors import ConfigError

AutocastSetting = str | dict[str, Any] | list[dict[str, Any]]

_AUTOCAST_NAMES = ("ambient", "same_as_forward", "off")
_AUTOCAST_ARGUMENTS = ("device_type", "dtype", "enabled", "cache_enabled")


class _Overrides(threading.local):
    """The settings patched in this thread, innermost last."""

    def __init__(self) -> None:
        self.stack: list[dict[str, Any]] = []


class Patch(contextlib.ContextDecorator):
    """One layer of settings, in force between enter and exit. See ``Config.patch``."""

    def __init__(self, overrides: _Overrides, settings: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        validate(settings)
        self._overrides, self._settings, self._tell = overrides, settings, tell

    def __enter__(self) -> None:
        self._overrides.stack.append(self._settings)
        self._tell(self._settings)

    def __exit__(self, *_: object) -> None:
        # By identity, last first: another layer may hold equal settings, and the same one may be entered twice.
        stack = self._overrides.stack
        del stack[max(index for index, layer in enumerate(stack) if layer is self._settings)]


class Config:
    """The settings of gradc. Assigning sets the value for every thread; ``patch`` for a scope of this thread.

    Attributes:
        backward_pass_autocast: under which autocast the backward of a compiled region runs.
            ``"ambient"`` (default): whatever is active when backward runs, as in eager.
            ``"same_as_forward"``: what was active where the region's forward ran.
            ``"off"``: none. A dict of ``torch.autocast`` arguments, or a list of them: exactly those.
            The value in force when a region is compiled stays with the region.
        compile_seconds: how many seconds gradc may compile at a stretch in this process (default 3.0, also
            ``GRADC_COMPILE_SECONDS``), of what the thread computes. A tenth of the time that passes between compilations is
            added, up to that. What comes when nothing is left runs eagerly, counted as
            ``counters["uncompiled"]["compile budget"]``, until there is more. None (``GRADC_COMPILE_SECONDS=none``): no limit;
            there is none under ``fullgraph=True``, either.
            The value in force at ``gradc.compile`` stays, and ``options={"compile_seconds": ...}`` is one for
            that target alone.
        compare_with_eager: once nothing new is compiled any more, make a few calls of each compiled module or step eagerly, a
            few compiled, and run from then on what is faster (default True, also ``GRADC_COMPARE_WITH_EAGER``). Results
            are the same bit for bit. Eager must be faster by a twentieth; it is then counted, call by call, as
            ``counters["uncompiled"]["slower than eager"]``. Not under ``fullgraph=True``, nor with another backend.
            The value in force at ``gradc.compile`` stays, and ``options={"compare_with_eager": ...}`` is one for that call.
        device_graphs: record what runs on a GPU as graphs of the device (CUDA graphs), after a few runs, and replay them: the
            same kernels, one launch (default True, also ``GRADC_DEVICE_GRAPHS``). Memory that a graph works in is kept for its
            next replay. The value in force when a region or a backward is compiled stays with it.
        verify: how many calls of each compiled function or module, its backward included, run beside in eager, on copies, and
            are compared bit for bit (default 0; also ``GRADC_VERIFY_CALLS=n``): the first ones, and as many whenever something
            is compiled anew. What is not eager's is told and runs eagerly from then on. As it is at ``gradc.compile``, or
            ``options={"verify": n}``. Nothing is where other bits are allowed (``backend="auto", options={"bitwise": False}``).
        compiled_autograd: capture every backward pass of the process (default False; also ``GRADC_COMPILED_AUTOGRAD=1``).
    """

    def __init__(self) -> None:
        object.__setattr__(self, "_global", dict(DEFAULTS))
        object.__setattr__(self, "_overrides", _Overrides())
        object.__setattr__(self, "_watchers", [])

    @property
    def backward_pass_autocast(self) -> AutocastSetting:
        return self._value("backward_pass_autocast")

    @property
    def compile_seconds(self) -> float | None:
        return self._value("compile_seconds")

    @property
    def compare_with_eager(self) -> bool:
        return self._value("compare_with_eager")

    @property
    def compiled_autograd(self) -> bool:
        return self._value("compiled_autograd")

    @property
    def device_graphs(self) -> bool:
        return self._value("device_graphs")

    @property
    def verify(self) -> int:
        value: int = self._value("verify")
        return value

    def _value(self, name: str) -> Any:
        if overrides := self._overrides.stack:
            for layer in reversed(overrides):
                if name in layer:
                    return layer[name]
        return self._global[name]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(_unknown(name))

    def __setattr__(self, name: str, value: Any) -> None:
        validate({name: value})
        self._global[name] = value
        self._tell({name: value})

    def patch(self, **settings: Any) -> Patch:
        """Change ``settings`` inside a ``with`` block, or for the calls of a function when used as a decorator.

        Nests; concerns the current thread only; restored when the block ends, by an exception too.

        Raises:
            ConfigError: at once, for an unknown setting or value.
        """
        return Patch(self._overrides, settings, self._tell)

    def watch(self, name: str, listener: Callable[[Any], None]) -> None:
        """Call ``listener`` with the present value of a setting, and with each that it is given later, in any thread."""
        self._watchers.append((name, listener))
        listener(self._value(name))

    def _tell(self, settings: dict[str, Any]) -> None:
        for name, listener in self._watchers:
            if name in settings:
                listener(settings[name])

    def __dir__(self) -> list[str]:
        return [*DEFAULTS, "patch"]


def validate(settings: dict[str, Any]) -> None:
    """Check names and values.

    Raises:
        ConfigError: for one that is not known.
    """
    for name, value in settings.items():
        if name not in DEFAULTS:
            raise ConfigError(_unknown(name))
        _VALIDATORS[name](value)


def _unknown(name: str) -> str:
    return f"gradc.config has no setting {name!r}. The settings are: {', '.join(DEFAULTS)}."


def _validate_autocast(value: Any) -> None:
    if isinstance(value, str) and value in _AUTOCAST_NAMES:
        return
    entries = value if isinstance(value, list) else [value]
    if not entries or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(
            f"backward_pass_autocast={value!r} is not a setting. Use one of {', '.join(map(repr, _AUTOCAST_NAMES))}, "
            "a dict of torch.autocast arguments such as {'device_type': 'cpu', 'dtype': torch.bfloat16}, "
            "or a non-empty list of such dicts."
        )
    for entry in entries:
        if wrong := [key for key in entry if key not in _AUTOCAST_ARGUMENTS]:
            raise ConfigError(
                f"backward_pass_autocast: torch.autocast has no argument {wrong[0]!r}. "
                f"Its arguments are: {', '.join(_AUTOCAST_ARGUMENTS)}."
            )
        if "device_type" not in entry:
            raise ConfigError(f"backward_pass_autocast={value!r}: 'device_type' is missing, for example 'cpu'.")
        _try_autocast(value, entry)


def _try_autocast(value: Any, entry: dict[str, Any]) -> None:
    """Let torch.autocast judge ``entry``. For a device that this machine lacks it only warns, and so do we not mind."""
    import torch  # here, so that importing gradc imports nothing of torch

    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.autocast(**entry)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ConfigError(f"backward_pass_autocast={value!r}: torch.autocast refuses it: {error}") from error
    if wrong := [str(warning.message) for warning in caught if "dtype is not supported" in str(warning.message)]:
        raise ConfigError(f"backward_pass_autocast={value!r}: torch.autocast refuses it: {' '.join(wrong[0].split())}")


def _validator_of_bool(name: str) -> Callable[[Any], None]:
    def validate_bool(value: Any) -> None:
        if not isinstance(value, bool):
            raise ConfigError(f"{name}={value!r} is not a setting. Use True or False.")

    return validate_bool


def _validate_seconds(value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and value > 0):
        raise ConfigError(f"compile_seconds={value!r} is not a setting. Use a number of seconds above 0, or None for no limit.")


def seconds_set(variable: str, unset: float) -> float | None:
    """The seconds that an environment variable gives; None if it is "none".

    Raises:
        ConfigError: if it is anything else but a number above 0.
    """
    text = os.environ.get(variable) or str(unset)
    with contextlib.suppress(ValueError):
        value = None if text == "none" else float(text)
        if value is None or value > 0:
            return value
    raise ConfigError(f"{variable}={text!r} is not a setting. Use a number of seconds above 0, or none.")


def _validate_number(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(f"verify={value!r} is not a setting. Use a number of calls, or 0 for none.")


def number_set(variable: str) -> int:
    """The number that an environment variable gives; unset, 0.

    Raises:
        ConfigError: if it is no number of 0 or more.
    """
    text = os.environ.get(variable) or "0"
    if not text.isdecimal():
        raise ConfigError(f"{variable}={text!r} is not a setting. Use a number of calls, or 0 for none.")
    return int(text)


def is_set(variable: str, unset: str = "0") -> bool:
    """Whether an environment variable is 1; unset, it is ``unset``.

    Raises:
        ConfigError: if it is anything else.
    """
    value = os.environ.get(variable) or unset
    if value not in ("0", "1"):
        raise ConfigError(f"{variable}={value!r} is not a setting. Use 1 or 0.")
    return value == "1"


DEFAULTS: dict[str, Any] = {
    "backward_pass_autocast": "ambient",
    "compile_seconds": seconds_set("GRADC_COMPILE_SECONDS", 3.0),
    "compare_with_eager": is_set("GRADC_COMPARE_WITH_EAGER", "1"),
    "compiled_autograd": is_set("GRADC_COMPILED_AUTOGRAD"),
    "device_graphs": is_set("GRADC_DEVICE_GRAPHS", "1"),
    "verify": number_set("GRADC_VERIFY_CALLS"),
}
_VALIDATORS: dict[str, Callable[[Any], None]] = {
    "backward_pass_autocast": _validate_autocast,
    "compile_seconds": _validate_seconds,
    "compare_with_eager": _validator_of_bool("compare_with_eager"),
    "compiled_autograd": _validator_of_bool("compiled_autograd"),
    "device_graphs": _validator_of_bool("device_graphs"),
    "verify": _validate_number,
}

config = Config()
