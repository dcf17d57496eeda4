"""Work of Dynamo's that no program uses: for logs that nobody asked for, for features of torch that are not in use.

It is a third of what Dynamo takes for a small model's first graph: it times guards with the caches of the processor flushed,
reads whole source files for the names of functions, and loads a hundred modules to see that a value comes from none of them.
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any

from torch._C._dynamo.guards import GuardManager
from torch._dynamo import convert_frame, guards, output_graph, symbolic_convert
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.variables.higher_order_ops import LocalMapWrappedHigherOrderVariable
from torch._functorch._aot_autograd.utils import saved_tensors_hooks_are_inlineable, top_saved_tensors_hooks

from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

_GUARD_LOGS = (guards.guards_log,)
_CALL_LOGS = (output_graph.trace_call_log, symbolic_convert.trace_call_log, symbolic_convert.trace_source_log)
_LOCAL_MAP = "torch.distributed.tensor.experimental._func_map"
_LOADED_TO_BE_NAMED = ("torch.export._trace", "torch._inductor.sizevars")


def leave_out_unused_work() -> Patch:
    """Leave out what has no effect on graphs, guards or any log that is on."""
    return Patch(
        "leave_out_unused_work",
        "Dynamo works for logs that are off and loads modules that are not in use: a good part of a small model's first call.",
        (
            around(guards, "profile_guard_manager", _unless_logged(_GUARD_LOGS, 0.0)),
            around(symbolic_convert, "get_funcname", _unless_logged(_CALL_LOGS, None)),
            around(LocalMapWrappedHigherOrderVariable, "should_wrap_in_hop", _should_wrap),
            around(output_graph, "uninteresting_files", _uninteresting_files),
            around(OutputGraph, "get_replayed_side_effect_source_refs", _side_effects),
        ),
    )


def leave_out_unused_guards() -> Patch:
    """Do not ask, at each call, whether somebody has called torch._dynamo.mark_dynamic and its kin for a tensor since.

    Such a mark holds from the next compilation on, which a changed size brings.

    Nor whether saved-tensors hooks are graphs, which torch's own compiler puts into its own: gradc calls all hooks there are.
    """
    return Patch(
        "leave_out_unused_guards",
        "At each call five attributes of each tensor are looked up, for marks that make no difference before sizes change; and "
        "Python is asked for hooks that AOTAutograd would compile.",
        (
            around(GuardManager, "add_dimension_marking_guard", _marking_guard),
            around(guards.GuardBuilder, "AUTOGRAD_SAVED_TENSORS_HOOKS", _hooks_guard),
        ),
    )


def _hooks_guard(original: Method, self: Any, guard: Any) -> Any:
    is_needed = saved_tensors_hooks_are_inlineable(top_saved_tensors_hooks())
    return original(self, guard) if is_needed else None


def _marking_guard(original: Method, self: Any, marked: Any, unmarked: Any, *others: Any) -> Any:
    return original(self, marked, unmarked, *others) if marked else None


def _unless_logged(logs: tuple[logging.Logger, ...], unlogged: Any) -> Method:
    def call(original: Method, *args: Any) -> Any:
        is_needed = any(log.isEnabledFor(logging.DEBUG) for log in logs)
        return original(*args) if is_needed else unlogged

    return call


def _should_wrap(original: Method, cls: Any, value: Any) -> bool:
    """Asked for each value in a graph. A value of a module that nobody loaded is not among them."""
    if _LOCAL_MAP not in sys.modules:
        return False
    return bool(original(cls, value))


def _uninteresting_files(original: Method) -> Any:
    """The files that are left out of a traced call's stack. No call comes from a module that nobody loaded."""
    are_loaded = all(name in sys.modules for name in _LOADED_TO_BE_NAMED)
    return original() if are_loaded else _torch_files()


def _side_effects(original: Method, self: Any, **what: Any) -> Any:
    """The names of what compiled code changes beside its results: for a warning that is off, and for hooks on bytecode."""
    is_needed = bool(what or convert_frame._bytecode_hooks)
    return original(self, **what) if is_needed else []


@functools.cache
def _torch_files() -> frozenset[str]:
    """The files of those modules that a user's call may pass through, while the others are not loaded."""
    through = ("torch._compile", "torch._dynamo.eval_frame", "torch._library.custom_ops", "torch.fx.interpreter")
    return frozenset(file for name in through if (file := getattr(sys.modules.get(name), "__file__", None)) is not None)
