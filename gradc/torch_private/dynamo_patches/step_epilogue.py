"""The end of a training step, as ``loss.backward(); optimizer.step(); losses.append(loss.item())``, runs in its frame.

Behind each graph break Dynamo goes on in a function of its own, which it compiles, guards and looks up at each call: 3 us for
each of the two behind ``backward``, and more where it finds an op, such as ``detach``. Where nothing is left to compile, the
function's own bytecode follows instead, as Python has it: with numbers, lists and attributes, which would be guarded there. Of
whatever is called Dynamo is asked as ever.
"""

from __future__ import annotations

import builtins
import collections
import copy
import inspect
import sys
import time
import types
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._dynamo.bytecode_transformation import create_binary_subscr, create_instruction, create_load_const, create_swap
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables import LazyVariableTracker, TensorVariable
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from gradc.torch_private.dynamo_patches.loss_to_backward import begin_joint_if_dropped
from gradc.torch_private.dynamo_patches.quick_methods import QuickMethod, call_quickly
from gradc.torch_private.dynamo_patches.reachable_code import RETURNS, all_behind
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

_TENSOR, _RESULT, _NULL = object(), object(), object()  # what bytecode leaves on the stack, where it is no value that is known
_METHODS = {  # of None: not come to
    Optimizer: ("step", "zero_grad"), LRScheduler: ("step",), GradScaler: ("step", "update"), type(None): ("step",),
    list: ("append",), collections.deque: ("append",),
}  # fmt: skip
_OF_TENSORS = {"backward": _RESULT, "detach": _TENSOR, "item": _RESULT}  # as fast as in a graph, and what they give
_CALCULATED = (property, types.MemberDescriptorType, types.GetSetDescriptorType)  # attributes that are another's value
_NUMBERS = (float, int)  # of a tensor, too
_OF_PYTHON = (*_NUMBERS, len, max, min, print, round, str, time.perf_counter, time.time)  # what they are given is no tensor
_TAKES = {  # how many values an instruction takes, none of which may be a tensor, and whether it leaves one
    "BINARY_OP": (2, True), "BINARY_SUBSCR": (2, True), "COMPARE_OP": (2, True), "CONTAINS_OP": (2, True),
    "UNARY_NEGATIVE": (1, True), "UNARY_NOT": (1, True), "STORE_SUBSCR": (3, False),
}  # fmt: skip
_GATHERS = {"BUILD_TUPLE": 0, "BUILD_LIST": 0, "BUILD_STRING": 0, "BUILD_CONST_KEY_MAP": 1}  # so many values more than it says
_WITHOUT_TENSOR = {  # names of methods that leave none
    *(name for methods in _METHODS.values() for name in methods),
    *(name for name, left in _OF_TENSORS.items() if left is _RESULT),
}  # fmt: skip
_OF_A_CALL = ("PRECALL", "CALL", "CACHE")  # without arguments, behind its method
_NOTHING = ("RESUME", "NOP", "CACHE", "PRECALL", "KW_NAMES", "JUMP_FORWARD", *RETURNS)  # to follow


class _Method(NamedTuple):
    owner: Any
    name: str
    load: Any = None  # the instruction that takes it from its owner


def end_in_the_same_frame(quick_method: QuickMethod) -> Patch:
    """See the module's docstring."""

    def resume(original: Method, self: Any, inst: Any, all_stack_locals_metadata: Any) -> Any:
        rest = _rest_from(self, inst) if _is_plain(self, all_stack_locals_metadata) else []
        reader = _Reader(self, inst)
        if not rest or not reader.computes_nothing(rest):
            begin_joint_if_dropped(self, all_behind(self, inst))
            return original(self, inst, all_stack_locals_metadata)
        self.instruction_pointer = None
        begin_joint_if_dropped(self, rest)
        for method in reader.without_arguments:
            if isinstance(method.owner, Optimizer):
                call_quickly(self, rest, method, quick_method)
        return [*_with_variables(all_stack_locals_metadata[0].locals_names, len(self.stack)), *rest]

    return Patch(
        "end_in_the_same_frame",
        "Behind each graph break Dynamo goes on in a function of its own, though nothing may be left to compile.",
        (around(InstructionTranslatorBase, "create_call_resume_at", resume),),
    )


def _is_plain(translator: Any, metadata: Sequence[Any]) -> bool:
    """True in the function itself, outside of ``with`` and ``try``, with one value on the stack at most, and all as it is."""
    values = metadata[0]
    remade = values.stack_null_idxes or values.locals_null_keys or values.stack_ctx_args or values.locals_ctx_args
    is_inside = translator.parent is not None or translator.block_stack or translator.cellvars()
    return not remade and not is_inside and len(translator.stack) <= 1


def _rest_from(translator: Any, first: Any) -> list[Any]:
    """Copies of the bytecode that may run from there on; none if it has a loop, or something handles its errors."""
    place_of, behind = translator.indexof, all_behind(translator, first)
    if any(inst.exn_tab_entry is not None or (inst.target and place_of[inst.target] <= place_of[inst]) for inst in behind):
        return []
    copies = {inst: copy.copy(inst) for inst in behind}
    for inst in copies.values():
        inst.target = copies.get(inst.target)
    return [*copies.values()]


def _with_variables(places: dict[str, int], num_values: int) -> list[Any]:
    """Bytecode that stores the variables, and leaves nothing but so many values: below are [cells], [[variables]]."""
    names = sorted(places, key=places.__getitem__)
    below = create_swap(2) if num_values else []
    take = [create_load_const(0), create_binary_subscr(), create_instruction("UNPACK_SEQUENCE", arg=len(names))]
    stores = [create_instruction("STORE_FAST", argval=name) for name in names]
    return [*below, *take, *stores, *map(copy.copy, below), create_instruction("POP_TOP")]


class _Reader:
    """Follows bytecode, in its order, by what it leaves on the stack: values that are known, and marks for others.

    It may be wrong about a value: what is taken for an optimizer, and is none in a later call, runs as Python has it.
    """

    def __init__(self, translator: Any, first: Any) -> None:
        self._translator = translator
        self._stack: list[Any] = [_left_before(translator, first)] * len(translator.stack)
        self._stored: dict[str, Any] = {}
        self.without_arguments: list[_Method] = []  # called so

    def computes_nothing(self, instructions: Iterable[Any]) -> bool:
        """True if it calls nothing but optimizers and their like, and what takes as long in eager as in a graph."""
        return all(map(self._follow, instructions))

    def _follow(self, inst: Any) -> bool:
        match inst.opname:
            case "LOAD_FAST" | "LOAD_FAST_BORROW":
                self._stack.append(self._variable(inst.argval))
            case "LOAD_DEREF":
                self._stack.append(_mark(self._translator.f_locals.get(inst.argval, _TENSOR)))
            case "LOAD_GLOBAL":
                self._stack += [*[_NULL] * (inst.arg & 1), self._global(inst.argval)]
            case "LOAD_CONST" | "LOAD_SMALL_INT":
                self._stack.append(inst.argval if isinstance(inst.argval, (str, int)) else _RESULT)
            case "PUSH_NULL":
                self._stack.append(_NULL)
            case "LOAD_METHOD":
                self._method(inst)
            case "LOAD_ATTR" if sys.version_info >= (3, 12) and inst.arg & 1:
                self._method(inst)
            case "LOAD_ATTR":
                return self._attribute(inst.argval)
            case "STORE_FAST":
                (self._stored[inst.argval],) = self._pop(1)
            case "STORE_ATTR":
                return self._pop(2)[1] is not _TENSOR
            case "IS_OP":
                self._pop(2)
                self._stack.append(_RESULT)
            case "FORMAT_VALUE":
                self._pop(2 if inst.arg & 4 else 1)
                self._stack.append(_RESULT)
            case "BUILD_MAP":
                self._pop(2 * inst.arg)
                self._stack.append(_RESULT)
            case "CALL":
                return self._call(inst.arg)
            case name if name in _GATHERS:
                self._pop(inst.arg + _GATHERS[name])
                self._stack.append(_RESULT)
            case name if name in _TAKES:
                return self._take(name, *_TAKES[name])
            case name if name in ("POP_TOP", "STORE_DEREF", "STORE_GLOBAL") or name.startswith("POP_JUMP_"):
                self._pop(1)
            case name:
                return name in _NOTHING
        return True

    def _pop(self, count: int) -> list[Any]:
        start = len(self._stack) - count
        taken = self._stack[start:]
        del self._stack[start:]
        return taken

    def _take(self, name: str, count: int, leaves: bool) -> bool:
        taken = self._pop(count)
        if leaves:
            self._stack.append(_item(*taken) if name == "BINARY_SUBSCR" else _RESULT)
        return all(value is not _TENSOR for value in taken)

    def _variable(self, name: str) -> Any:
        if name in self._stored:
            return self._stored[name]
        traced = self._translator.symbolic_locals.get(name)
        if isinstance(traced, LazyVariableTracker) and not traced.is_realized():
            return _mark(self._translator.f_locals.get(name, _RESULT))
        if traced is None:
            return _RESULT
        traced = traced.realize()
        return _TENSOR if isinstance(traced, TensorVariable) else vars(traced).get("value", _RESULT)

    def _global(self, name: str) -> Any:
        return _mark(self._translator.f_globals.get(name, getattr(builtins, name, _RESULT)))

    def _method(self, inst: Any) -> None:
        (owner,) = self._pop(1)
        self._stack += [_Method(owner, inst.argval, inst), _NULL]

    def _attribute(self, name: str) -> bool:
        (owner,) = self._pop(1)
        self._stack.append(_mark(_attribute_of(owner, name)))
        return owner is not _TENSOR

    def _call(self, num_arguments: int) -> bool:
        arguments = self._pop(num_arguments)
        *_, called = (value for value in self._pop(2) if value is not _NULL)
        if isinstance(called, _Method) and not arguments:
            self.without_arguments.append(called)
        result = _result_of(called, arguments)
        self._stack.append(result)
        return result is not None


def _item(container: Any, key: Any) -> Any:
    """What a dictionary that is known has, and a list of anything but tensors; else it may be a tensor."""
    if isinstance(container, dict) and isinstance(key, str):
        return _mark(dict.get(container, key, _RESULT))
    is_known = type(container) in (list, tuple, collections.deque)
    return _RESULT if is_known and not any(isinstance(value, torch.Tensor) for value in container) else _TENSOR


def _attribute_of(owner: Any, name: str) -> Any:
    """What it is without running any code; where that is not known, it may be a tensor."""
    parts: Iterable[Any] = (owner._parameters, owner._buffers, owner._modules) if isinstance(owner, nn.Module) else ()
    for part in parts:
        if name in part and part[name] is not None:  # no get: those of a ScriptModule are no dictionaries
            return part[name]
    found = inspect.getattr_static(owner, name, _TENSOR)
    return _TENSOR if isinstance(found, _CALCULATED) else found


def _mark(value: Any) -> Any:
    return _TENSOR if isinstance(value, torch.Tensor) else value


def _left_before(translator: Any, inst: Any) -> Any:
    """What the call that the graph ended at leaves: a method that gives none, or it may be a tensor."""
    place = translator.indexof[inst]
    before = [each for each in translator.instructions[max(place - 3, 0) : place] if each.opname not in _OF_A_CALL]
    is_method = bool(before) and before[-1].opname in ("LOAD_METHOD", "LOAD_ATTR")
    return _RESULT if is_method and before[-1].argval in _WITHOUT_TENSOR else _TENSOR


def _result_of(called: Any, arguments: list[Any]) -> Any:
    """What the call leaves; None where it may compute."""
    if any(called is known for known in _OF_PYTHON):
        is_number = any(called is known for known in _NUMBERS) and len(arguments) == 1
        return _RESULT if is_number or all(argument is not _TENSOR for argument in arguments) else None
    if not isinstance(called, _Method):
        return None
    if called.owner is _TENSOR:
        return _OF_TENSORS.get(called.name)
    is_known = any(isinstance(called.owner, kind) and called.name in names for kind, names in _METHODS.items())
    return _RESULT if is_known else None
