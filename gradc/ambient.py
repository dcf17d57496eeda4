"""The ambient state that decides what a computation does: read, set, and made into a key.

    autocast_state: () -> AutocastState          set_autocast: AutocastState -> None
    unsupported_mode: () -> the name of a mode that no Program can serve, or ""
    ambient:        AutocastState -> Ambient     with the modes on which kernels and strides depend

The state that counts for backward is the one in force when backward runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from gradc.torch_private.autograd import are_saved_tensors_hooked
from gradc.torch_private.modes import (
    autocast_devices,
    autocast_nesting,
    close_autocast,
    close_transforms,
    is_anomaly_enabled,
    is_any_autocast_enabled,
    is_any_mode_active,
    is_below_autograd,
    is_forward_ad_active,
    is_functorch_active,
    is_layout_enforced,
    matmul_precision,
    num_dispatch_modes,
    transforms,
)
from gradc.torch_private.replaced_kernels import are_kernels_replaced


@dataclasses.dataclass(frozen=True)
class AutocastState:
    """Autocast as one call sees it: the enabled device types with their dtypes, sorted. Empty means off."""

    enabled: tuple[tuple[str, torch.dtype], ...] = ()


NO_AUTOCAST = AutocastState()


@dataclasses.dataclass(frozen=True)
class Ambient:
    """The state a backward runs in: autocast, and the modes that change which kernels an op takes, or a gradient's strides.

    The same as Ambient in csrc/ambient.h, field by field: both are parts of keys.
    """

    autocast: AutocastState
    is_deterministic: bool
    matmul_precision: str
    is_mkldnn_enabled: bool
    default_dtype: torch.dtype
    is_layout_enforced: bool


def ambient(autocast: AutocastState) -> Ambient:
    """The present state of this thread, with ``autocast`` in the place of its autocast."""
    return Ambient(
        autocast,
        torch.are_deterministic_algorithms_enabled(),
        matmul_precision(),
        bool(torch.backends.mkldnn.enabled),
        torch.get_default_dtype(),
        is_layout_enforced(),
    )


def is_watched() -> bool:
    """True while something beside the program sees each call: a mode, a transform, saved-tensors hooks."""
    return is_any_mode_active() or is_functorch_active() or are_saved_tensors_hooked()


def unsupported_mode() -> str:
    """Why ops must reach the dispatcher one by one just now, as eager sends them; "" if they need not."""
    if is_functorch_active():
        return "function transform"
    if num_dispatch_modes():
        return "dispatch mode"
    if is_forward_ad_active():
        return "forward-mode AD"
    if is_anomaly_enabled():
        return "anomaly mode"
    if are_kernels_replaced():
        return "replaced kernels"
    return "kernel of an op" if is_below_autograd() else ""


def autocast_state() -> AutocastState:
    """The autocast that is active in this thread now, of every device type.

    While autocast is being applied to an op it counts as off, as it does for the ops that the op calls.
    """
    if not is_any_autocast_enabled():
        return NO_AUTOCAST
    enabled = (device for device in autocast_devices() if torch.is_autocast_enabled(device))
    return AutocastState(tuple(sorted((device, torch.get_autocast_dtype(device)) for device in enabled)))


def set_autocast(state: AutocastState) -> None:
    """Make ``state`` the autocast of this thread. The weight-cast cache and its nesting stay as they are."""
    enabled = dict(state.enabled)
    for device in autocast_devices():
        torch.set_autocast_enabled(device, device in enabled)
        if device in enabled:
            torch.set_autocast_dtype(device, enabled[device])


@contextlib.contextmanager
def autocast_set_to(state: AutocastState) -> Iterator[None]:
    """Run a block under ``state``, and restore what was, the dtype of a disabled autocast (its default) too."""
    before = _autocast_settings()
    set_autocast(state)
    try:
        yield
    finally:
        _restore_autocast(before)


def _autocast_settings() -> list[tuple[str, bool, torch.dtype]]:
    return [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in autocast_devices()]


def _restore_autocast(settings: list[tuple[str, bool, torch.dtype]]) -> None:
    for device, is_enabled, dtype in settings:
        torch.set_autocast_enabled(device, is_enabled)
        torch.set_autocast_dtype(device, dtype)


@contextlib.contextmanager
def modes_kept_on_error() -> Iterator[None]:
    """Put autocast, grad mode and transforms back if the block raises: Dynamo's graphs enter and leave them by plain calls."""
    nesting, are_gradients_recorded, before = autocast_nesting(), torch.is_grad_enabled(), _autocast_settings()
    entered = transforms()
    try:
        yield
    except BaseException:
        close_transforms(entered)
        torch.set_grad_enabled(are_gradients_recorded)
        _restore_autocast(before)
        close_autocast(nesting)
        raise


def autocast_of(arguments: dict[str, Any] | list[dict[str, Any]]) -> AutocastState:
    """The state inside ``torch.autocast(**arguments)``, entered where none is active (a list: each inside the last)."""
    with autocast_set_to(AutocastState()), contextlib.ExitStack() as stack:
        for entry in arguments if isinstance(arguments, list) else [arguments]:
            stack.enter_context(torch.autocast(**entry))
        return autocast_state()
