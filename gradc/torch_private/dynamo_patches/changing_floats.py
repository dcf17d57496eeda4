"""A number of Python's that changes from call to call (a temperature, the weight of a loss) is an input of the graph.

Dynamo makes a symbol of a float once it has changed. What Python calculates step by step becomes one expression, which rounds
otherwise, and on which the way of a branch may hang; and for what an op is given, there is no value. Here a float stays one:
what Python calculates is written down call by call, ops are given the number, and any other use of it ends the graph.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.fx
from torch._dynamo import config
from torch._dynamo.bytecode_transformation import create_call_function
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.output_graph import SubgraphTracer
from torch._dynamo.pgo import FrameStateSizeEntry, auto_dynamic, process_automatic_dynamic
from torch._dynamo.source import is_constant_source
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import GraphArg, VariableBuilder
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.tensor import SymNodeVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._guards import Guard

from gradc.torch_private.dynamo_patches.opaque import Kind, OpaqueVariable
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

TakesFloats = Callable[[Any, Sequence[Any], Mapping[str, Any], Callable[[Any], bool], Callable[[Any], bool]], bool]

FLOAT = Kind(
    (float,),
    "float that changes",
    "gradc leaves to Python what is done with a float that changes from call to call, but for arithmetic and ops that it only "
    "goes into. As a tensor it is an input of the graph.",
)

_SYMBOLIC = "symbolic_float"  # in a node's meta
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_OPERATORS = (*_BINARY, *(f"i{name}" for name in _BINARY), "neg", "pos", "abs")
_ARITHMETIC = {getattr(operator, name) for name in _OPERATORS} | {abs, float, max, min, pow}
_ARITHMETIC |= {value for name, value in vars(math).items() if not name.startswith("_") and callable(value)}
_OTHERS_OF_NUMBERS = {int, round, divmod, *(getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne"))}


class FloatVariable(OpaqueVariable):
    """A float that changes: one that the frame was given, or what ``function`` makes of ``operands``.

    ``symbolic``: the same as Dynamo's symbol, where that is exact: what one call made of ints. Sizes are calculated of it.
    """

    def __init__(
        self, value: float, output: Any, function: Any = None, operands: Sequence[VariableTracker] = (), **kwargs: Any
    ) -> None:
        super().__init__(value, FLOAT, **kwargs)
        self.output, self.function, self.operands = output, function, list(operands)
        self.proxy: torch.fx.Proxy | None = None
        self.symbolic: VariableTracker | None = None

    def as_proxy(self) -> torch.fx.Proxy:
        if self.output.current_tracer is not self.output.root_tracer:
            FLOAT.end_graph("an argument inside a higher-order operator")
        if self.proxy is None:
            self.proxy = self._input() if self.function is None else self._result()
        return self.proxy

    def _input(self) -> torch.fx.Proxy:
        assert self.source is not None, "what was not calculated was given"
        name = re.sub(r"[^a-zA-Z0-9]+", "_", self.source.name)
        proxy = self.output.root_tracer.create_graph_input(name, float, self.value, source=self.source)
        proxy.node.meta["grapharg"] = GraphArg(self.source, self.value, False, None, is_tensor=False)
        return proxy

    def _result(self) -> torch.fx.Proxy:
        operands = tuple(operand.as_proxy() for operand in self.operands)
        proxy = self.output.create_proxy("call_function", self.function, operands, {}, type_expr=float)
        proxy.node.meta["example_value"] = self.value
        if self.symbolic is not None:
            proxy.node.meta[_SYMBOLIC] = self.symbolic.as_proxy()
        return proxy

    def reconstruct(self, codegen: Any) -> None:
        codegen.add_push_null(lambda: codegen.load_import_from(self.function.__module__, self.function.__name__))
        codegen.foreach(self.operands)
        codegen.extend_output(create_call_function(len(self.operands), False))


def take_changing_floats(takes_floats: TakesFloats) -> Patch:
    """Make a float an input of the graph once it was another in a call before. Until it changes, it is a constant, and guarded.

    ``takes_floats`` tells of a call whether the floats among its arguments may be inputs.
    """

    def wrap(original: Method, self: Any, value: float) -> Any:
        if is_constant_source(self.get_source()):
            return original(self, value)
        if _has_changed(self, value):
            return _input(self, value)
        if value == 0:  # Dynamo takes 0.0 for -0.0
            install_guard(self.get_source().make_guard(_same_sign))
        return original(self, value)

    def call(original: Method, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        function = self.fn if isinstance(self, BuiltinVariable) else self.value
        if kwargs or not _takes_numbers(function):
            return original(self, tx, args, kwargs)
        args = [arg.realize() for arg in args]
        made = _calculated(tx, function, args)
        if made is None:
            return original(self, tx, _as_symbols(args), kwargs)
        if not any(type(arg) is FloatVariable for arg in args):
            made.symbolic = original(self, tx, args, kwargs)
        return made

    def proxy(original: Method, self: Any, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **named: Any) -> Any:
        is_op = kind in ("call_function", "call_method", "call_module") and named.get("type_expr") is not float
        if is_op and not takes_floats(target, args, kwargs, _is_float, _is_tensor):
            what = f"an argument of {getattr(target, '__name__', target)}"
            args, kwargs = torch.fx.node.map_aggregate((args, kwargs), lambda arg: _symbol_for(arg, what))
        return original(self, kind, target, args, kwargs, *more, **named)

    return Patch(
        "take_changing_floats",
        "Dynamo calculates with symbols where Python rounds at each step, and has no value for what an op is given.",
        (
            around(VariableBuilder, "wrap_symfloat", wrap),
            around(BuiltinVariable, "call_function", call),
            around(TorchInGraphFunctionVariable, "call_function", call),
            around(SubgraphTracer, "create_proxy", proxy),
        ),
    )


def _same_sign(builder: Any, guard: Guard) -> None:
    """Guard the sign of a float that is zero."""
    sign = math.copysign(1, builder.get(guard))
    words = [f"math.copysign(1, {guard.name}) == {sign}"]

    def is_same(value: Any) -> bool:
        return isinstance(value, float) and math.copysign(1, value) == sign  # asked before whether it is a float

    builder.get_guard_manager(guard).add_lambda_guard(is_same, words, guard.user_stack)


def _has_changed(builder: Any, value: float) -> bool:
    is_of_module = builder.source.guard_source.is_unspecialized_nn_module()
    entry = FrameStateSizeEntry.make_scalar(value)  # type: ignore[arg-type]  # as Dynamo does
    seen = process_automatic_dynamic(builder.tx, builder.source.name, entry, is_unspecialized_nn_module=is_of_module)
    return not config.assume_static_by_default or seen.scalar is auto_dynamic


def _input(builder: Any, value: float) -> FloatVariable:
    known = builder.tx.output.unspec_variable_map
    if builder.name not in known:
        install_guard(builder.get_source().make_guard(GuardBuilder.TYPE_MATCH))
        known[builder.name] = FloatVariable(value, builder.tx.output, source=builder.get_source())
    found: FloatVariable = known[builder.name]
    return found


def _calculated(tx: Any, function: Any, operands: Sequence[VariableTracker]) -> FloatVariable | None:
    """The float that Python's arithmetic makes of numbers, some of which change; None for anything else, or where it raises."""
    if function not in _ARITHMETIC or all(map(_is_constant, operands)) or not all(map(_is_number, operands)):
        return None
    try:
        value = function(*map(_value_of, operands))
    except Exception:
        return None
    return FloatVariable(value, tx.output, function, operands) if type(value) is float else None


def _takes_numbers(function: Any) -> bool:
    """Whether it is Python's: no op of torch's, for which a float stays a number."""
    return function in _ARITHMETIC or function in _OTHERS_OF_NUMBERS


def _as_symbols(args: Sequence[VariableTracker]) -> list[VariableTracker]:
    """With Dynamo's symbols for floats where there is no tensor: sizes come of them."""
    symbols = [arg.symbolic if type(arg) is FloatVariable else arg for arg in args]
    return [*args] if None in symbols or any(arg.is_tensor() for arg in args) else [arg for arg in symbols if arg is not None]


def _symbol_for(arg: Any, what: str) -> Any:
    """Dynamo's symbol for a float, for an op that cannot take it as it is."""
    if not _is_float(arg):
        return arg
    return arg.node.meta.get(_SYMBOLIC) or FLOAT.end_graph(what)


def _is_constant(operand: VariableTracker) -> bool:
    return type(operand) is ConstantVariable


def _is_number(operand: VariableTracker) -> bool:
    if type(operand) is SymNodeVariable:
        return isinstance(operand.sym_num, torch.SymInt) and _is_of_inputs(operand.as_proxy().node)
    return type(operand) is FloatVariable or _is_constant(operand)


def _is_of_inputs(node: torch.fx.Node) -> bool:
    """Whether an int is an input of the graph, or calculated of such and constants."""
    if node.op == "call_function":
        return node.target in _ARITHMETIC and not node.kwargs and all(map(_is_of_inputs, node.all_input_nodes))
    return node.op == "placeholder" and isinstance(node.meta.get("example_value"), torch.SymInt)


def _value_of(operand: Any) -> Any:
    if type(operand) is SymNodeVariable:
        return operand.sym_num.node.hint
    return operand.value if type(operand) is FloatVariable else operand.as_python_constant()


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.fx.Proxy) and type(value.node.meta.get("example_value")) is float


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.fx.Proxy) and isinstance(value.node.meta.get("example_value"), torch.Tensor)
