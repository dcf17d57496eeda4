"""Which autograd.Functions do in backward what is known in forward: those whose code reads nothing but ``ctx`` and torch."""

from __future__ import annotations

import dis
import math
import types
from typing import Any

import torch

AUTOGRAD_FUNCTION = torch._functorch.autograd_function.autograd_function_apply  # Dynamo's operator for one
SWITCH_RECORDING = torch._C._set_grad_enabled

_LIBRARIES = (torch, torch.nn.functional, math)
_BUILTINS = {"abs", "bool", "dict", "enumerate", "float", "int", "len", "list", "max", "min", "range", "sum", "tuple", "zip"}
_STORES = {"STORE_GLOBAL", "DELETE_GLOBAL", "DELETE_ATTR", "STORE_SUBSCR", "DELETE_SUBSCR", "IMPORT_NAME"}
# What is to be had of a gradient only when it is there, what reads modes, and what Dynamo's operator for a Function leaves out.
_WORDS = """
    _version grad_fn is_leaf requires_grad is_inference data_ptr register_hook retain_grad data grad item tolist
    is_contiguous stride storage_offset layout is_sparse is_conj is_neg is_nested untyped_storage
    is_grad_enabled is_inference_mode_enabled is_autocast_enabled get_autocast_dtype is_anomaly_enabled
    get_default_dtype get_default_device manual_seed seed autograd func cuda _C compiler _dynamo
    no_grad enable_grad set_grad_enabled inference_mode autocast amp
    set_materialize_grads mark_dirty save_for_forward materialize_grads dirty_tensors non_differentiable
"""
_NOT_PLAIN = frozenset(_WORDS.split())


def is_plain(function: type) -> bool:
    """True if the class has the usual methods alone, and the code of each is plain."""
    methods = {name: function.__dict__.get(name) for name in ("forward", "backward")}
    if set(_own_names(function)) - set(methods) or not all(isinstance(one, staticmethod) for one in methods.values()):
        return False
    codes = {name: one.__func__ for name, one in methods.items() if isinstance(one, staticmethod)}
    return all(_is_plain(code, may_set=name == "forward") for name, code in codes.items())


def _own_names(function: type) -> list[str]:
    """What the class and its bases define, but for torch's and what torch adds."""
    bases = [base for base in function.__mro__ if base.__module__.split(".")[0] not in ("torch", "builtins")]
    names = [name for base in bases for name in vars(base) if not name.startswith("__")]
    return [name for name in names if name not in ("_backward_cls", "_compiled_autograd_should_lift")]


def _is_plain(function: Any, may_set: bool) -> bool:
    """``may_set``: the code may set attributes of ``ctx``."""
    if not isinstance(function, types.FunctionType) or function.__closure__ or function.__defaults__ or function.__kwdefaults__:
        return False
    code = function.__code__
    if any(isinstance(constant, types.CodeType) for constant in code.co_consts) or not all(map(_is_plain_name, code.co_names)):
        return False
    instructions = [one for one in dis.get_instructions(code) if one.opname not in ("CACHE", "EXTENDED_ARG", "PRECALL")]
    for one, following in zip(instructions, [*instructions[1:], None]):
        is_ctx = one.opname == "LOAD_FAST" and one.argval == code.co_varnames[0]
        if is_ctx and (following is None or following.opname not in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR")):
            return False
        if one.opname in _STORES or (one.opname == "STORE_ATTR" and not may_set):
            return False
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME") and not _is_known(function.__globals__, one.argval):
            return False
    return True


def _is_plain_name(name: str) -> bool:
    writes = name.endswith("_") and not name.startswith("_")
    return not writes and name not in _NOT_PLAIN


def _is_known(names: dict[str, Any], name: str) -> bool:
    """True for torch, and for Python's own functions that read nothing else."""
    return any(names[name] is library for library in _LIBRARIES) if name in names else name in _BUILTINS
