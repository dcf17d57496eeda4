"""One captured graph to one region: the table of contents of gradc.

    compile_region: (FX graph, inputs, options) -> Region

Each step makes a value that nothing writes to afterwards:

    record            tape/record.py       run the graph on fake tensors: the tape is autograd's own graph, and the ATen calls
    analyse           analysis/facts.py    read off the tape what is asked more than once
    hoist             analysis/hoist.py    what a call makes outside the Program: casts of weights, views of arguments, detours
    analyse_outputs   analysis/outputs.py  how each output is made: a value, an input itself, a view of one or of a value
    cut               analysis/segments.py the tape in segments, each of which becomes one autograd node
    live_order        analysis/order.py    the order in which eager makes the nodes that a call makes
    choose_returned   region/returned.py   what the forward returns: values, and what is saved for backward
    forward_program   region/region.py     the forward as a Program, which the backend lowers
    Region            region/region.py     what is called; its backwards are compiled when they first run: backward/cache.py

All but the first are ``region.region.build_region``: a derivative is recorded otherwise, and becomes a region in the same way.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import sympy
import torch
import torch.fx

from gradc.ambient import AutocastState, autocast_of, autocast_state, unsupported_mode
from gradc.backends import lower_of
from gradc.backward.settings import Settings
from gradc.config import config
from gradc.errors import GradcError, InternalError, UnsupportedError, is_passing
from gradc.frontend.graph import examples_of, placeholders, runner_of, user_line, user_name
from gradc.options import CompileOptions
from gradc.region.region import Region, build_region
from gradc.tape.record import record_with_floats
from gradc.tape.tape import Tape
from gradc.torch_private.autograd import is_view
from gradc.torch_private.dynamo import guard_weight, tracing_context
from gradc.torch_private.fakes import FAKE_TENSOR_ERRORS, FakeTensorMode, is_fake
from gradc.torch_private.quiet import saying_only_once
from gradc.torch_private.subclasses import runs_code_of_its_own
from gradc.torch_private.switches import guard_switches

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object: another one in each error, though nothing else is
_KNOWN_ERRORS = {
    "is being used in an in-place operation": "input mutated in place with gradient recording",
    "don't yet support saved tensor hooks": "function transform",
}
_region_numbers = itertools.count()


def compile_region(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], options: CompileOptions, floats: Sequence[sympy.Symbol] = ()
) -> Region:
    """See the module's docstring. ``floats``: the symbols of the inputs that are floats.

    Raises:
        UnsupportedError: with the reason, if the region must run eagerly.
    """
    with _telling_errors_of_tracing(), saying_only_once():
        _refuse_what_eager_must_run(graph, inputs)
        settings = Settings(lower_of(options), _backward_autocast(), options.fullgraph)
        examples, names = examples_of(graph, inputs), [user_name(node) for node in placeholders(graph)]
        tape = record_with_floats(floats, runner_of(graph), examples, names, _fake_mode(), "forward")
        _guard_weights(tape, graph, inputs)
        if tracing_context() is not None:
            guard_switches(graph)
        region = build_region(tape, settings, f"region {next(_region_numbers)}")
        if tape.symints or region.backwards.has_code_of_others:
            region.backwards.compile_nominal()
    return region


def _refuse_what_eager_must_run(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    for value in inputs:
        if runs_code_of_its_own(value) or is_fake(value):  # fake ones come from DDP, which cuts graphs up
            raise UnsupportedError("tensor subclass", type(value).__name__)
    if reason := unsupported_mode():
        raise UnsupportedError(reason)
    for node in graph.graph.nodes:
        if "register_hook" in str(node.target):  # traced, it would be baked into backward; eager calls it each time
            raise UnsupportedError("hook registered inside", where=user_line(node))
        if str(node.target).startswith("streams."):  # a Program has tensors only, and would leave it out
            raise UnsupportedError("stream", str(node.target), user_line(node))


def _backward_autocast() -> AutocastState | None:
    setting = config.backward_pass_autocast
    if setting == "ambient":
        return None
    if setting == "same_as_forward":
        return autocast_state()
    return AutocastState() if isinstance(setting, str) else autocast_of(setting)


def _fake_mode() -> FakeTensorMode:
    """Dynamo's, whose symbols its guards speak of; a new one outside of it."""
    context = tracing_context()
    return context.fake_mode if context is not None and context.fake_mode is not None else FakeTensorMode()


@contextlib.contextmanager
def _telling_errors_of_tracing() -> Iterator[None]:
    """What eager would raise too, eager shall raise; what only tracing meets, eager does not."""
    try:
        yield
    except FAKE_TENSOR_ERRORS as error:
        raise UnsupportedError("data-dependent op", str(error).split("\n")[0]) from error
    except (UnsupportedError, GradcError, InternalError):
        raise
    except Exception as error:
        if is_passing(error):
            raise  # to be tried again: see run_eagerly_where_dynamo_fails
        text = _ADDRESS.sub("", str(error).split("\n")[0])
        kind = next((kind for part, kind in _KNOWN_ERRORS.items() if part in text), f"tracing raised {type(error).__name__}")
        raise UnsupportedError(kind, text) from error


def _guard_weights(tape: Tape, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Autocast caches the copies of weights alone: whether an input is one must be as it was when the region was traced."""
    nodes = placeholders(graph)
    for position, is_weight in tape.weights.items():
        value, placeholder = inputs[position], nodes[position]
        if value.is_leaf and is_view(value):
            raise UnsupportedError("leaf under autocast that is a view", user_name(placeholder))
        if "grapharg" in placeholder.meta:
            guard_weight(placeholder, is_weight)
