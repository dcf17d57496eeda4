"""What is active in this thread around an op: dispatch modes, torch.func's transforms, forward-mode AD, autocast."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch


def dispatch_modes() -> list[Any]:
    """The Python dispatch modes active in this thread, outermost first."""
    return torch.utils._python_dispatch._get_current_dispatch_mode_stack()


@contextlib.contextmanager
def innermost_dispatch_mode(mode: Any) -> Iterator[None]:
    """While inside, ``mode`` is the innermost dispatch mode of this thread, without having been entered."""
    torch.utils._python_dispatch._push_mode(mode)
    try:
        yield
    finally:
        torch.utils._python_dispatch._pop_mode()


def without_dispatch_modes() -> contextlib.AbstractContextManager[Any]:
    """No Python dispatch mode is active inside."""
    return torch.utils._python_dispatch._disable_current_modes()


def without_functions_of_subclasses() -> contextlib.AbstractContextManager[Any]:
    """No class's ``__torch_function__`` is called inside: a tensor is looked at, whatever its class allows."""
    return torch._C.DisableTorchFunctionSubclass()


def matmul_precision() -> str:
    """As ``torch.get_float32_matmul_precision`` has it, which raises where the precision was set by other names."""
    cuda, onednn = (torch._C._get_fp32_precision_getter(backend, "matmul") for backend in ("cuda", "mkldnn"))
    reduced = ("tf32", "bf16")
    if cuda not in reduced and onednn not in reduced:
        return "highest"
    if cuda == "tf32" and onednn in reduced:
        return "high" if onednn == "tf32" else "medium"
    return f"cuda {cuda}, mkldnn {onednn}"


def num_dispatch_modes() -> int:
    return torch._C._len_torch_dispatch_stack()


def is_any_mode_active() -> bool:
    """True if a dispatch mode or a function mode sees the calls of this thread."""
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._len_torch_function_stack() > 0


def sees_calls(mode: Any) -> bool:
    """True for a function mode that is to see each call; that of ``torch.set_default_device`` only says where tensors are."""
    return not isinstance(mode, torch.utils._device.DeviceContext)


def is_seen_by_function_modes() -> bool:
    """True if a function mode of this thread sees each call."""
    if torch._C._len_torch_function_stack() == 0:
        return False
    return any(map(sees_calls, torch.overrides._get_current_function_mode_stack()))


def is_functorch_active() -> bool:
    """True inside torch.func.grad, vmap and their kin."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_batched(tensor: torch.Tensor) -> bool:
    """True for a tensor inside vmap. ``is_grads_batched=True`` makes one of an older kind, with no transform on the stack."""
    return torch._C._functorch.is_batchedtensor(tensor) or torch._C._functorch.is_legacy_batchedtensor(tensor)


def is_forward_ad_active() -> bool:
    return torch.autograd.forward_ad._current_level >= 0


def is_below_autograd() -> bool:
    """True inside a kernel: nobody records gradients there, whatever the grad mode. Not so of inference mode."""
    is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality)
    return is_excluded and not torch.is_inference_mode_enabled()


def below_autograd() -> contextlib.AbstractContextManager[object]:
    """Inside, ops are called as a kernel calls them: no gradient is recorded, whatever the grad mode."""
    guard: contextlib.AbstractContextManager[object] = torch._C._AutoDispatchBelowAutograd()
    return guard


class DispatchKeys:
    """Which parts of torch's dispatcher are switched on and off in this thread now: autograd's are off inside of kernels."""

    def __init__(self) -> None:
        self._included = torch._C._dispatch_tls_local_include_set()
        self._excluded = torch._C._dispatch_tls_local_exclude_set()

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        with torch._C._ForceDispatchKeyGuard(self._included, self._excluded):
            yield


def is_anomaly_enabled() -> bool:
    return torch.is_anomaly_enabled()


def without_anomaly_mode() -> contextlib.AbstractContextManager[Any]:
    return torch.autograd.set_detect_anomaly(False)


def is_layout_enforced() -> bool:
    """True if a leaf's first gradient gets the leaf's strides."""
    return torch._C._is_grad_layout_enforcement_enabled()


def transforms() -> tuple[int, int, bool, bool, str | None]:
    """How deep this thread is in torch.func's transforms and in dual levels, and the flags that they set while they run."""
    return (
        torch._C._functorch.get_dynamic_layer_stack_depth(),
        torch.autograd.forward_ad._current_level,
        torch._C._is_fwd_grad_enabled(),
        torch._C._functorch.get_inplace_requires_grad_allowed(),
        torch._C._autograd._saved_tensors_hooks_get_disabled_error_message(),
    )


def close_transforms(before: tuple[int, int, bool, bool, str | None]) -> None:
    """Leave what was entered since ``before``, as a graph of Dynamo's does at its end only: it enters them by plain calls."""
    depth, dual_level, has_forward_gradients, is_in_place_allowed, why_hooks_are_refused = before
    torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
    while torch.autograd.forward_ad._current_level > dual_level:
        torch.autograd.forward_ad.exit_dual_level()
    if dual_level < 0:
        _close_dual_level()
    torch._C._set_fwd_grad_enabled(has_forward_gradients)
    torch._C._functorch.set_inplace_requires_grad_allowed(is_in_place_allowed)
    torch._C._autograd._saved_tensors_hooks_enable()
    if why_hooks_are_refused is not None:
        torch._C._autograd._saved_tensors_hooks_disable(why_hooks_are_refused, fail_if_non_empty=False)


def _close_dual_level() -> None:
    """Leave the level that C++ alone knows. Nothing tells whether there is one, but that there cannot be two."""
    try:
        level = torch._C._enter_dual_level()
    except RuntimeError:
        level = 0
    torch._C._exit_dual_level(level=level)


def autocast_devices() -> list[str]:
    """The device types that torch has autocast for, those of other machines too; PrivateUse1 by the name it has now."""
    return torch._C._autocast_supported_devices()


def is_any_autocast_enabled() -> bool:
    return torch._C._is_any_autocast_enabled()


@functools.cache
def has_autocast_kernel(op: Any, device_type: str) -> bool:
    """True for an op (an overload) whose arguments autocast casts on that device type."""
    if not isinstance(op, torch._ops.OpOverload) or not torch._C._dispatch_has_kernel(op.name()):
        return False
    key = "Autocast" + torch._C._dispatch_key_for_device(device_type)
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)


def has_autograd_kernel(op: Any, device_type: str) -> bool:
    """True for an op (an overload) that torch runs with autograd off on that device type, since it brings a formula."""
    own = "Autograd" + torch._C._dispatch_key_for_device(device_type)
    keys, name = ("Autograd", own if hasattr(torch._C.DispatchKey, own) else "AutogradOther"), op.name()
    return any(
        torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
        and not torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough(name, key)
        for key in keys
    )


def autocast_nesting() -> int:
    """How many autocast contexts are open in this thread; the weight-cast cache lives until there are none."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def close_autocast(nesting: int) -> None:
    """Leave the autocast contexts that were entered beyond ``nesting``, and drop the weight casts with the last, as they do."""
    while autocast_nesting() > nesting:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()


@contextlib.contextmanager
def autocast_nested() -> Iterator[None]:
    """As inside an autocast context that changes nothing."""
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()
