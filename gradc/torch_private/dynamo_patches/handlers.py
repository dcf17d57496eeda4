"""What stands around an op and may see its error: an ``except``, a ``finally``, a ``with``.

    let_handlers_see_errors: the patch
    may_be_ended:  tx -> whether a handler around what is traced now may end an error, so that the function goes on
    handlers_of:   graph -> Handlers: whether one may see an error of the graph's calls, and whether one may end it
    leave_to_handlers: () -> never; by a backend, which cannot run the graph again: its handlers are left to Python
    runs_once, may_run_again: (output graph) -> says, asks: a call of it does something before the graph; an error may be ended

A graph's call stands behind all that Dynamo traced, so an error of it flies past the handlers of the user's code. Gradc runs a
frame whose graph raised again, as it was written (``gradc.frontend.raised``). What it then returns, because a handler ended the
error, comes from the graph's call as a ``Returned``, and the frame returns it at once.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import itertools
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import torch
from torch._dynamo.bytecode_transformation import cleaned_instructions, create_instruction
from torch._dynamo.exc import RestartAnalysis, SkipFrame
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.variables.ctx_manager import ContextWrappingVariable, WithExitFunctionVariable

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.reachable_code import RETURNS, all_behind
from gradc.torch_private.frames import can_be_as_written
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import after, around

_ENDED_BY = "gradc_error_ended_by"  # of a node of the graph whose error handlers see: the functions of those that may end it
_RUNS_ONCE = "gradc_runs_once"  # of an output graph
_GO_ON = "gradc_handlers_that_go_on"  # of Dynamo's translator of a function: handler -> whether it may return behind it
_IF_TRUE = "POP_JUMP_FORWARD_IF_TRUE" if sys.version_info < (3, 12) else "POP_JUMP_IF_TRUE"

_left_to_python: weakref.WeakSet[types.CodeType] = weakref.WeakSet()  # functions whose handlers no graph may stand in


class Handlers(NamedTuple):
    """What may see an error of a graph's calls: whether it ``are_there``, and the functions whose handlers ``may_end_it``."""

    are_there: bool
    may_end_it: frozenset[types.CodeType]


class Returned:
    """What a frame has returned that ran again: what stands in place of the results of its graph's call."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __iter__(self) -> Iterator[Any]:
        return iter((self._value,))


class _Code(NamedTuple):
    instructions: list[Any]
    indexof: dict[Any, int]


class _LeftToHandlers(SkipFrame):
    """A backend's: Dynamo lets it pass."""


def let_handlers_see_errors() -> Patch:
    """See the module's docstring."""
    return Patch(
        "let_handlers_see_errors",
        "An error of a graph flies past the try, and past the with, around the op that raises it.",
        (after(OutputGraph, "create_proxy", _mark), around(OutputGraph, "compile_and_call_fx_graph", _compile)),
    )


def may_be_ended(tx: Any) -> bool:
    """See the module's docstring: in this function or in one that it was inlined into."""
    return any(ends for _, ends in _handlers(tx))


def handlers_of(graph: torch.fx.GraphModule | OutputGraph) -> Handlers:
    """See the module's docstring."""
    modules = [graph, *graph.nn_modules.values()] if isinstance(graph, OutputGraph) else graph.modules()
    graphs = (module.graph for module in modules if isinstance(module, torch.fx.GraphModule | OutputGraph))
    marks = [node.meta[_ENDED_BY] for each in graphs for node in each.nodes if _ENDED_BY in node.meta]
    return Handlers(bool(marks), frozenset().union(*marks))


def runs_once(output: OutputGraph) -> None:
    """See the module's docstring: as a cache that is asked for what it has, and counts that."""
    vars(output)[_RUNS_ONCE] = True


def may_run_again(output: OutputGraph) -> bool:
    """See the module's docstring."""
    return bool(handlers_of(output).may_end_it)


def leave_to_handlers() -> NoReturn:
    """See the module's docstring."""
    raise _LeftToHandlers("see gradc.torch_private.dynamo_patches.handlers")


def _mark(proxy: Any, output: Any, kind: str, *args: Any, **kwargs: Any) -> Any:
    if kind.startswith("call_"):
        handlers = list(_handlers(output.current_tx))
        if handlers:
            proxy.node.meta[_ENDED_BY] = ended_by = {code for code, ends in handlers if ends}
            if ended_by and (_RUNS_ONCE in vars(output) or not _left_to_python.isdisjoint(ended_by)):
                end_graph(
                    "op that may raise inside of a try",
                    "Python's except, or with, may end the error; what is compiled writes into what was there before, so it "
                    "cannot run again.",
                )
    return proxy


def _compile(original: Method, self: Any, tx: Any, rv: Any, root: Any) -> Any:
    handlers = handlers_of(self)
    if handlers.may_end_it and (self.random_calls or not can_be_as_written(self.root_tx.f_code)):
        _trace_without(handlers)
    try:
        instructions, *rest = original(self, tx, rv, root)
    except _LeftToHandlers:
        _trace_without(handlers)
    if handlers.are_there and instructions:
        go_on = create_instruction("NOP")
        instructions += [
            create_instruction("MATCH_SEQUENCE"),  # the results are one
            create_instruction(_IF_TRUE, target=go_on),
            create_instruction("UNPACK_SEQUENCE", arg=1),
            create_instruction("RETURN_VALUE"),
            go_on,
        ]
    return instructions, *rest


def _trace_without(handlers: Handlers) -> NoReturn:
    """The frame is traced once more: where it comes to those handlers, graphs end."""
    _left_to_python.update(handlers.may_end_it)
    raise RestartAnalysis(restart_reason="an op may raise inside of a try, in a graph that cannot run again")


def _handlers(tx: Any) -> Iterator[tuple[types.CodeType, bool]]:
    """The functions around what is traced that have handlers there, from the innermost, and whether these may end an error."""
    while tx is not None:
        entry = tx.current_instruction.exn_tab_entry
        while entry is not None:
            block = next((block for block in tx.block_stack if block.target is entry.target), None)
            if block is None:
                yield tx.f_code, _goes_on(tx, entry.target)
                break  # that has followed those around it
            context = tx.stack[block.stack_index - 1].ctx  # of the with's exit; an inlined function's block has no context
            if not isinstance(context, ContextWrappingVariable):  # torch's only put back what they set
                yield tx.f_code, _may_end(tx, context)
            entry = block.inst.exn_tab_entry
        tx = getattr(tx, "parent", None)


def _goes_on(tx: Any, handler: Any) -> bool:
    """Whether the function may return behind the handler of a try, or of a with inside of one. Each op there asks."""
    contexts = [value.ctx for value in tx.stack if isinstance(value, WithExitFunctionVariable)]
    end_withs = any(not isinstance(each, ContextWrappingVariable) and _may_end(tx, each) for each in contexts)
    known = vars(tx).setdefault(_GO_ON, {})
    if (handler, end_withs) not in known:
        known[handler, end_withs] = _may_return(tx, handler, end_withs)
    return bool(known[handler, end_withs])


def _may_return(code: Any, handler: Any, end_withs: bool) -> bool:
    return any(inst.opname in RETURNS for inst in all_behind(code, handler, end_withs=end_withs))


def _may_end(tx: Any, context: Any) -> bool:
    """Whether the ``__exit__`` of a context of the user's may say that the error has ended."""
    kind = context.python_type()
    if issubclass(kind, contextlib._GeneratorContextManager):
        made = getattr(context, "cm_vt", context)  # what functional_call enters stands around what Dynamo has made
        written = tx.output.side_effects.store_attr_mutations.get(made, {})
        generator = getattr(written.get("gen"), "inline_tracer", None)
        return generator is None or _catches(generator.f_code)
    leave = getattr(kind.__exit__, "__code__", None)
    return leave is None or _may_be_true(leave)


@functools.lru_cache
def _catches(generator: types.CodeType) -> bool:
    """Whether it goes on behind an error that is thrown in where it yields."""
    instructions = cleaned_instructions(generator)
    code = _Code(instructions, {inst: place for place, inst in enumerate(instructions)})
    entries = (inst.exn_tab_entry for inst in instructions if inst.opname == "YIELD_VALUE")
    return any(_may_return(code, entry.target, end_withs=True) for entry in entries if entry is not None)


@functools.lru_cache
def _may_be_true(code: types.CodeType) -> bool:
    """Whether it returns anything but constants that are false."""
    for before, inst in itertools.pairwise(dis.get_instructions(code)):
        if inst.opname == "RETURN_CONST" and inst.argval:
            return True
        if inst.opname == "RETURN_VALUE" and (before.opname != "LOAD_CONST" or before.argval):
            return True
    return False
