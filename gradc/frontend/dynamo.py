"""What Dynamo calls for each graph it captures: FX graph in, compiled region out.

    Backend(options): (GraphModule, example inputs) -> callable      also ``torch.compile(f, backend="gradc")``

Dynamo guards everything the graph depends on, so a region may rely on it. What cannot be compiled runs as Dynamo
captured it: the GraphModule itself, in eager mode.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from gradc.ambient import AutocastState, autocast_of, autocast_state, modes_kept_on_error, unsupported_mode
from gradc.analysis.facts import analyse
from gradc.backends import lookup_backend
from gradc.backward.settings import Settings
from gradc.config import config
from gradc.errors import OP_ERRORS, UnsupportedError
from gradc.frontend.graph import examples_of, first_line, lift_attributes, placeholders, runner_of, user_line, user_name
from gradc.frontend.patches import patches
from gradc.journal import count, fallback
from gradc.options import DEFAULTS, CompileOptions
from gradc.region.region import Region, build_region
from gradc.tape.record import record
from gradc.tape.weight_casts import CacheError
from gradc.torch_private.autograd import is_cut_off, is_saving_hooked_by_user, is_view
from gradc.torch_private.dynamo import guard_weight, tracing_context
from gradc.torch_private.fakes import FAKE_TENSOR_ERRORS, FakeTensorMode

_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_KNOWN_ERRORS = {
    "is being used in an in-place operation": "input mutated in place with gradient recording",
    "don't yet support saved tensor hooks": "function transform",
}
_region_numbers = itertools.count()


class Backend:
    """gradc as Dynamo sees it, with given options. Equal options make equal backends, so Dynamo reuses what it has."""

    def __init__(self, options: CompileOptions) -> None:
        self.compile_options = dataclasses.replace(options, dynamic=None)  # Dynamo knows it, and guards what it made
        self.__name__ = "gradc"

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
        """Compile one graph; the eager graph itself where that is not possible, counted under ``fallbacks``."""
        patches().apply()  # where they were undone meanwhile
        count("stats", "unique_graphs")
        graph, attributes = lift_attributes(graph)
        compiled, options = modes_kept_on_error()(graph.forward), self.compile_options
        try:
            region = compile_region(graph, [*attributes, *inputs], options)
            compiled = _guarded(region, graph, compiled, options)
        except UnsupportedError as error:
            fallback(error.kind, error.detail, error.where or first_line(graph), fullgraph=options.fullgraph)
        return functools.partial(compiled, *attributes) if attributes else compiled

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Backend) and other.compile_options == self.compile_options

    def __hash__(self) -> int:
        return hash(self.compile_options)


def __getattr__(name: str) -> Any:
    """``backend``: what ``torch.compile(backend="gradc")`` loads, by its entry point. To ask for it is to begin."""
    if name == "backend":
        patches().apply()
        return Backend(DEFAULTS)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def compile_region(graph: torch.fx.GraphModule, inputs: Sequence[Any], options: CompileOptions) -> Region:
    """Trace, cut, lower: one captured graph to one region.

    Raises:
        UnsupportedError: with the reason, if the region must run eagerly.
    """
    for value in inputs:
        if isinstance(value, torch.Tensor) and type(value) not in _PLAIN_TENSORS:
            raise UnsupportedError("tensor subclass", type(value).__name__)
    if reason := unsupported_mode():
        raise UnsupportedError(reason)
    for node in graph.graph.nodes:
        if "register_hook" in str(node.target):  # traced, it would be baked into backward; eager calls it each time
            raise UnsupportedError("hook registered inside", where=user_line(node))
    context = tracing_context()
    fake_mode = context.fake_mode if context is not None and context.fake_mode is not None else FakeTensorMode()
    examples, names = examples_of(graph, inputs), [user_name(node) for node in placeholders(graph)]
    settings = Settings(lookup_backend(options.backend), _backward_autocast(), options.fullgraph)
    try:
        tape = record(runner_of(graph), examples, names, fake_mode, "forward")
        _guard_weights(analyse(tape).weights, graph, inputs)
        region = build_region(tape, settings, f"region {next(_region_numbers)}")
        if tape.symints or region.backwards.has_code_of_others:
            region.backwards.compile_nominal()
    except FAKE_TENSOR_ERRORS as error:
        raise UnsupportedError("data-dependent op", str(error).split("\n")[0]) from error
    except OP_ERRORS as error:
        # What eager would raise too, eager shall raise; what only fake tensors cannot do, eager can.
        text = str(error).split("\n")[0]
        kind = next((kind for part, kind in _KNOWN_ERRORS.items() if part in text), f"tracing raised {type(error).__name__}")
        raise UnsupportedError(kind, text) from error
    return region


def _guard_weights(weights: Mapping[int, bool], graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Autocast caches the copies of weights alone: whether an input is one must be as it was when the region was traced."""
    nodes = placeholders(graph)
    for position, is_weight in weights.items():
        value, placeholder = inputs[position], nodes[position]
        if value.is_leaf and is_view(value):
            raise UnsupportedError("leaf under autocast that is a view", user_name(placeholder))
        if "grapharg" in placeholder.meta:
            guard_weight(placeholder, is_weight)


def _guarded(
    region: Region, graph: torch.fx.GraphModule, eagerly: Callable[..., Any], options: CompileOptions
) -> Callable[..., Any]:
    """The region, or eager where a state is active that no Program can serve."""

    def call(*inputs: Any) -> Any:
        if reason := unsupported_mode() or _what_is_unusual(inputs):
            fallback(reason, where=first_line(graph), fullgraph=options.fullgraph)
            return eagerly(*inputs)
        with contextlib.suppress(CacheError):
            return tuple(region(*inputs))
        fallback("weights that autocast keeps other copies of", where=first_line(graph), fullgraph=options.fullgraph)
        return eagerly(*inputs)

    return region.guarded(torch.compiler.disable(call))


def _what_is_unusual(inputs: Sequence[Any]) -> str:
    if is_saving_hooked_by_user():
        return "saved-tensors hooks"
    return "input that is a view made under no_grad" if any(map(is_cut_off, inputs)) else ""


def _backward_autocast() -> AutocastState | None:
    setting = config.backward_pass_autocast
    if setting == "ambient":
        return None
    if setting == "same_as_forward":
        return autocast_state()
    return AutocastState() if isinstance(setting, str) else autocast_of(setting)
