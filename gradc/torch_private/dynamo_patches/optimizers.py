"""torch's optimizers inside compiled code: their steps are not traced."""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch._dynamo.convert_frame import CatchErrorsWrapper, ConvertFrame, ConvertFrameReturn
from torch._dynamo.types import FrameAction, FrameExecStrategy
from torch._dynamo.variables import SkipFunctionVariable
from torch._dynamo.variables.constant import ConstantVariable

from gradc.torch_private.dynamo_names import FUNCTIONS
from gradc.torch_private.dynamo_patches.ends import PREFIX, end_graph
from gradc.torch_private.dynamo_patches.quick_methods import QuickMethod
from gradc.torch_private.dynamo_patches.zero_grad_hoist import is_cleared_first
from gradc.torch_private.dynamo_patches.zero_grad_sink import is_cleared_last
from gradc.torch_private.optimizers import is_zero_grad, known_steps
from gradc.torch_private.ours import is_frame_ours
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around, before

_NATIVE_STEP, _ZERO_GRAD_FIRST = "native step of an optimizer", "zero_grad of an optimizer, before any calculation"
NATIVE_STEP, ZERO_GRAD_FIRST = PREFIX + _NATIVE_STEP, PREFIX + _ZERO_GRAD_FIRST  # reasons of graph breaks, as they are counted


def run_optimizers_eagerly(note: Callable[[str, Any], None], quick_method: QuickMethod) -> Patch:
    """Leave the steps of torch's optimizers out of graphs; a user's own optimizer is compiled.

    ``note`` is called with the name of an optimizer and the backend, at each step.
    """

    def inline(original: Method, self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if is_zero_grad(self.fn):
            how = tx, self, quick_method, *args
            if is_cleared_first(*how, **kwargs) or is_cleared_last(*how, **kwargs):
                return ConstantVariable.create(None)
            _end_at_zero_grad(tx)
        if _is_of_an_optimizer(self.fn):
            end_at_step(self.fn)
        return original(self, tx, *args, **kwargs)

    def skipped(self: Any, tx: Any, *args: Any, **kwargs: Any) -> None:
        """A scheduler notes in a wrapper of the optimizer's step that it was called."""
        if hasattr(self.value, "_wrapped_by_lr_sched"):
            end_at_step(self.value.__wrapped__)

    def convert(original: Method, self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        code, backend = frame.f_code, self._torchdynamo_orig_backend
        if not (code.co_filename == _OPTIMIZER_BASE or _is_of_an_optimizer(code)):
            return original(self, frame, *args, **kwargs)
        owner = frame.f_locals.get("self") or next(iter(frame.f_locals.get("args", ())), None)
        if isinstance(owner, torch.optim.Optimizer):
            is_users = not _is_of_an_optimizer(type(owner).step)
            if is_users and code.co_filename == _OPTIMIZER_BASE:
                return original(self, frame, *args, **kwargs)
            if code.co_name == ("step" if is_users else "wrapper"):
                note(type(owner).__name__, backend)
        return _without(FrameAction.DEFAULT if _has_closure(frame) else FrameAction.SKIP)

    def helper(original: Method, self: Any, frame: Any, *args: Any) -> Any:
        """What a step with a closure calls: it calls the closure."""
        return _without(FrameAction.DEFAULT) if _is_helper(frame.f_code) else original(self, frame, *args)

    return Patch(
        "run_optimizers_eagerly",
        "Under Dynamo torch's optimizers take other branches, which round otherwise: they ask torch.compiler.is_compiling().",
        (
            *(around(kind, "call_function", inline) for kind in FUNCTIONS),
            before(SkipFunctionVariable, "call_function", skipped),
            around(ConvertFrame, "__call__", convert, scope=is_frame_ours),
            around(CatchErrorsWrapper, "__call__", helper, scope=is_frame_ours),
        ),
    )


def _without(inside: Any) -> Any:
    """The frame runs as it is, this time; ``inside``: those that it calls."""
    return ConvertFrameReturn(frame_exec_strategy=FrameExecStrategy(FrameAction.SKIP, inside), apply_to_code=False)


def _is_helper(code: types.CodeType) -> bool:
    return code.co_name not in ("step", "wrapper") and _is_of_an_optimizer(code)


def _has_closure(frame: Any) -> bool:
    """Whether a step is given a function that computes the loss: that is the user's, and compiled."""
    given = frame.f_locals
    return any(map(callable, (given.get("closure"), *given.get("args", ())[1:], *given.get("kwargs", {}).values())))


def end_at_step(step: Any) -> NoReturn:
    is_native = getattr(step, "__wrapped__", None) in known_steps()
    name = _NATIVE_STEP if is_native else "optimizer"
    end_graph(name, "gradc runs the steps of optimizers as eager does.", step.__name__)


def _end_at_zero_grad(tx: Any) -> NoReturn:
    """Traced, it would let gradients live until the graph has run, and be captured anew for each set of gradients there are."""
    is_first = all(node.op in ("placeholder", "get_attr") for node in tx.output.graph.nodes)
    why = "Gradients are cleared there and then, which no graph does; model.zero_grad() is traced."
    places = "at the beginning of the step, shortly before loss.backward(), or behind the optimizer's step"
    hints = [] if is_first else [f"Call it {places}."]
    end_graph(_ZERO_GRAD_FIRST if is_first else "zero_grad of an optimizer", why, hints=hints)


_OPTIMIZERS = os.path.dirname(torch.optim.__file__)


_OPTIMIZER_BASE, *_NO_OPTIMIZERS = (
    os.path.join(_OPTIMIZERS, name) for name in ("optimizer.py", "lr_scheduler.py", "swa_utils.py")
)


def _is_of_an_optimizer(function: Any) -> bool:
    path = getattr(inspect.unwrap(function), "__code__", function).co_filename
    return path.startswith(_OPTIMIZERS) and path not in (_OPTIMIZER_BASE, *_NO_OPTIMIZERS)
