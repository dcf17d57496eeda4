"""What Dynamo calls for each graph it captures: FX graph in, compiled region out.

    Backend(options): (GraphModule, example inputs) -> callable      also ``torch.compile(f, backend="gradc")``

Dynamo guards everything the graph depends on, so a region may rely on it. What cannot be compiled runs as Dynamo
captured it: the GraphModule itself, in eager mode.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from gradc.ambient import modes_kept_on_error, unsupported_mode
from gradc.analysis.facts import Facts
from gradc.backward.cache import HIGHER_ORDER_ELSEWHERE
from gradc.errors import ConfigError, UnsupportedError
from gradc.frontend.begin import begin
from gradc.frontend.compile import compile_region
from gradc.frontend.floats import FloatInputs, lift_floats
from gradc.frontend.graph import first_line, lift_attributes, num_calls
from gradc.frontend.leaves import lift_leaves
from gradc.frontend.patches import patches
from gradc.frontend.raised import Again, again_of, as_written_if_watched, if_nothing_was_written, with_eagers_error
from gradc.frontend.transforms import advice_of_vmap, forbids_hooks, said_at_each_call
from gradc.journal import count, fallback
from gradc.options import DEFAULTS, CompileOptions
from gradc.policy.budget import Budget, budget_of_options
from gradc.region.region import Region
from gradc.tape.weight_casts import CacheError
from gradc.torch_private.autograd import are_saved_tensors_hooked, is_cut_off, is_heard, is_saving_hooked_by_user
from gradc.torch_private.dynamo import code_of
from gradc.torch_private.dynamo_patches.handlers import handlers_of, leave_to_handlers
from gradc.torch_private.dynamo_patches.loss_to_backward import joint_of, without_history
from gradc.torch_private.modes import without_functions_of_subclasses
from gradc.torch_private.subclasses import is_subclass


class Backend:
    """gradc as Dynamo sees it, with given options. Equal options make equal backends, so Dynamo reuses what it has."""

    def __init__(self, options: CompileOptions, budget: Budget | None = None) -> None:
        self.budget = budget or budget_of_options(options, "a function")
        self.compile_options = dataclasses.replace(options, dynamic=None)  # Dynamo knows it, and guards what it made
        self.__name__ = "gradc"

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
        """Compile one graph; the eager graph itself where that is not possible, each call counted under ``fallbacks``.

        Raises:
            ConfigError: for ``mode`` and ``options`` of ``torch.compile(backend="gradc")``.
        """
        if kwargs:
            raise ConfigError(
                f'torch.compile(backend="gradc") knows no {" or ".join(kwargs)}: {next(iter(kwargs.values()))!r}.\n'
                "  Leave it out, or compile with gradc.compile(target, options={...}), which names its options."
            )
        patches().apply()  # where they were undone meanwhile
        count("stats", "unique_graphs")
        self.budget.num_calls += num_calls(graph)
        joint, handlers = joint_of(graph), handlers_of(graph)
        graph, attributes = lift_attributes(without_history(graph))
        graph, leaves = lift_leaves(graph)
        compiled, options = _as_captured(graph, inputs), self.compile_options
        try:
            lifted, floats = lift_floats(graph)
            taken = floats.without([*attributes, *inputs, *leaves.examples])
            with advice_of_vmap(lifted) as advice:
                region = compile_region(lifted, taken, options, floats.symbols)
            facts = Facts(region.tape)
            refused, again = _what_inference_tensors_forbid(facts, taken), again_of(facts, handlers.are_there)
            may_be_ended = handlers.may_end_it and facts.may_raise
            if may_be_ended and again.raised is None:
                leave_to_handlers()
            if any(leaves.are_shared):
                _refuse_writes_beside_leaves(facts, floats.without(leaves.are_shared))
            compiled = said_at_each_call(advice, _guarded(region, floats, graph, compiled, options, refused, again, joint))
            compiled = as_written_if_watched(compiled, first_line(graph)) if may_be_ended else compiled
        except UnsupportedError as error:
            if handlers.may_end_it:
                leave_to_handlers()
            where = error.where or first_line(graph)
            tell = functools.partial(fallback, error.kind, error.detail, where, fullgraph=options.fullgraph)
            if handlers.are_there or error.kind.startswith("tracing raised"):
                compiled = if_nothing_was_written(compiled, handlers.are_there)
            compiled = _told(tell, compiled)
        compiled = leaves.given_to(compiled)
        return functools.partial(compiled, *attributes) if attributes else compiled

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Backend) and other.compile_options == self.compile_options

    def __hash__(self) -> int:
        return hash(self.compile_options)


def __getattr__(name: str) -> Any:
    """``backend``: what ``torch.compile(backend="gradc")`` loads, by its entry point. To ask for it is to begin."""
    if name == "backend":
        begin(Backend)
        return Backend(DEFAULTS)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _as_captured(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """The graph itself. What a subclass of tensors makes of a call's results is not part of it: Dynamo's bytecode does that."""
    as_data = without_functions_of_subclasses if any(map(is_subclass, inputs)) else contextlib.nullcontext

    def run(*inputs: Any) -> Any:
        with modes_kept_on_error(), as_data():
            return code_of(graph)(*inputs)

    return run


def _told(tell: Callable[[], None], eagerly: Callable[..., Any]) -> Callable[..., Any]:
    """``eagerly``, with each call counted. An error of fullgraph's is raised here: by the backend, Dynamo would wrap it."""

    def call(*inputs: Any) -> Any:
        tell()
        return eagerly(*inputs)

    return torch.compiler.disable(call)


def _guarded(
    region: Region,
    floats: FloatInputs,
    graph: torch.fx.GraphModule,
    eagerly: Callable[..., Any],
    options: CompileOptions,
    refused: str,
    again: Again,
    joint: tuple[Any, int],
) -> Callable[..., Any]:
    """The region, or eager where a state is active that no Program can serve; ``refused``: what is so out of inference mode."""
    are_hooks_forbidden = forbids_hooks(graph)
    drops = bool(graph.graph.find_nodes(op="call_function", target=torch.ops.higher_order.tag_activation_checkpoint))

    def call(*inputs: Any) -> Any:
        given = floats(inputs)
        reason = "float that decides what is called" if given is None else ""
        if given is not None:
            reason = unsupported_mode() or _what_is_unusual(region, inputs, drops) or _what_inner_gradients_miss(region, given)
        if not reason and refused and not torch.is_inference_mode_enabled():
            reason = refused
        if are_hooks_forbidden and are_saved_tensors_hooked():
            reason = "saved-tensors hooks"
        if not reason and region.was_expanded:
            reason = HIGHER_ORDER_ELSEWHERE
        if given is None or reason:
            fallback(reason, where=first_line(graph), fullgraph=options.fullgraph)
            return eagerly(*inputs)
        with contextlib.suppress(CacheError):
            with without_functions_of_subclasses():
                return tuple(region(*given))
        fallback("weights that autocast keeps other copies of", where=first_line(graph), fullgraph=options.fullgraph)
        return eagerly(*inputs)

    slow = torch.compiler.disable(call)
    is_slow = floats.kept is not None or refused or are_hooks_forbidden
    called = slow if is_slow else region.guarded(slow, *again, *joint)
    return with_eagers_error(slow, again) if called is slow else called


def _what_inference_tensors_forbid(facts: Facts, inputs: Sequence[Any]) -> str:
    """Why the region runs eagerly outside of inference mode.

    Eager forbids to write into them; a Program would write all the same, below autograd. Given them alone, a kernel is called
    below nothing of autograd's, and counts its own writes into what it makes.
    """
    tape = facts.tape
    pairs = zip(tape.primals, inputs)
    given = [p.fake for p, value in pairs if p.fake is not None and value.is_inference()]
    if any(facts.writes_into(fake) for fake in given):
        return "write into an inference tensor"
    outs = [facts.views.path_to(out)[0] for out in tape.outputs if isinstance(out, torch.Tensor)]
    return "output made of inference tensors alone" if any(facts.is_made_of_inference(out, given) for out in outs) else ""


def _refuse_writes_beside_leaves(facts: Facts, are_shared: Sequence[bool]) -> None:
    """A region's inputs are taken to be apart, but for what Dynamo has seen of them."""
    given = [primal.fake for primal, is_shared in zip(facts.tape.primals, are_shared) if is_shared]
    if any(facts.writes_into(fake) for fake in given if fake is not None):
        raise UnsupportedError("write into what shares memory with a leaf made inside")


def _what_inner_gradients_miss(region: Region, inputs: Sequence[Any]) -> str:
    """What lies outside of the region and an engine's pass inside would come to, and in which order nodes are made."""
    if region.tape.num_nodes_elsewhere:
        return HIGHER_ORDER_ELSEWHERE  # what may serve is served before: see gradc.nodes.thread_counts
    for inner in region.tape.inner_gradients:
        if any(not inputs[position].is_leaf for position in inner.must_be_leaves):
            return "gradient inside that leads outside"
        if any(is_heard(inputs[position]) for position in inner.wanted):
            return "hook on what a gradient inside is for"
    return ""


def _what_is_unusual(region: Region, inputs: Sequence[Any], drops: bool) -> str:
    """``drops``: whether the graph checkpoints, whose hooks take the place of the user's."""
    if region.segments and torch.is_inference_mode_enabled():
        return "gradients enabled in inference mode"  # what was traced records them; eager does not
    if reason := region.why_not_packed() or ("saved-tensors hooks" if drops and is_saving_hooked_by_user() else ""):
        return reason
    return "input that is a view made under no_grad" if any(map(is_cut_off, inputs)) else ""
