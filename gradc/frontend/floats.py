"""Python floats that change from call to call, as inputs of a graph: what takes them, and what Python makes of them first.

    takes_floats: a call in Dynamo's graph -> True if it may be given a float that changes
    lift_floats:  graph -> graph, FloatInputs       without Python's arithmetic: the floats that ops take are its last inputs
    FloatInputs:  inputs of the first -> inputs of the second, or None where eager must run

A float goes into ATen's call as the number that it is in eager. So no op may decide by it what else to call: that, and no more,
is in the table.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import sympy
import torch
import torch.fx

from gradc.ir.floats import bits_of
from gradc.ir.values import leaves
from gradc.torch_private.fakes import new_symint_of

_IS_FLOAT = "is_float_input"  # in a placeholder's meta
Spots = Mapping[int | str, Callable[[float], bool]]  # argument, by position or name -> the values that decide nothing


def _any(value: float) -> bool:
    return True


def _not_zero(value: float) -> bool:
    return value != 0


def _not_one(value: float) -> bool:
    return value != 1


def _inside(value: float) -> bool:
    return 0 < value < 1


_OPERANDS: Spots = {0: _any, 1: _any, "other": _any}
_OTHER_OR_ALPHA: Spots = {**_OPERANDS, "alpha": _not_one}  # of an alpha of 1, backward makes no product
_VALUE: Spots = {"value": _any}
_BOUNDS: Spots = {1: _any, 2: _any, "min": _any, "max": _any}

# Names of functions and of Tensor's methods. In place, they end in "_" or begin with "i".
_SPOTS: Mapping[str, Spots] = {
    **dict.fromkeys(("mul", "multiply", "truediv", "div", "divide", "true_divide"), _OPERANDS),
    **dict.fromkeys(("add", "sub", "subtract", "rsub"), _OTHER_OR_ALPHA),
    **dict.fromkeys(("lt", "le", "gt", "ge", "eq", "ne"), _OPERANDS),
    **dict.fromkeys(("addcmul", "addcdiv"), _VALUE),
    **dict.fromkeys(("clamp", "clip"), _BOUNDS),
    **dict.fromkeys(("clamp_min", "clamp_max"), _BOUNDS),
    "pow": {1: _not_zero, "exponent": _not_zero},
    "lerp": {2: _any, "weight": _any},
    "masked_fill": {2: _any, **_VALUE},
    "fill": {1: _any, **_VALUE},
    "where": {1: _any, 2: _any},
    "full": {1: _any, "fill_value": _any},
    "full_like": {1: _any, "fill_value": _any},
    "leaky_relu": {1: _any, "negative_slope": _any},
    "dropout": {1: _inside, "p": _inside},
    "layer_norm": {4: _any, "eps": _any},
}
_IN_PLACE = {"imul": "mul", "itruediv": "truediv", "iadd": "add", "isub": "sub", "ipow": "pow"}


def takes_floats(
    target: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    is_float: Callable[[Any], bool],
    is_tensor: Callable[[Any], bool],
) -> bool:
    """Whether the call may be given the floats that change among its arguments; True where there are none."""
    given = dict(_given(args, kwargs))
    floats = [spot for spot, value in given.items() if any(map(is_float, leaves(value)))]
    if not floats:
        return True
    spots = _spots_of(target)
    makes_a_tensor = target is torch.full or any(map(is_tensor, given.values()))
    return makes_a_tensor and all(spot in spots and is_float(given[spot]) for spot in floats)


def _spots_of(target: Any) -> Spots:
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return _SPOTS.get(_IN_PLACE.get(name, name.removesuffix("_")), {})


def _given(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[int | str, Any]]:
    yield from enumerate(args)
    yield from kwargs.items()


@dataclasses.dataclass(frozen=True)
class _At:
    """An operand: what stands at this position of the inputs and, behind them, of the results so far."""

    position: int


@dataclasses.dataclass(frozen=True)
class _Step:
    function: Callable[..., Any]
    operands: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """A float that ops take. Each of ``conditions`` says of which values it does not decide what is called."""

    at: _At
    conditions: tuple[Callable[[float], bool], ...]


@dataclasses.dataclass(frozen=True)
class FloatInputs:
    """See the module's docstring. ``symbols``: those of the floats' bits, which come behind the inputs that are ``kept``.

    Where no float changes, ``kept`` is None: all are.
    """

    kept: tuple[int, ...] | None = None
    steps: tuple[_Step, ...] = ()
    leaves: tuple[_Leaf, ...] = ()
    symbols: tuple[sympy.Symbol, ...] = ()

    def without(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs, but for the values of floats."""
        return list(inputs) if self.kept is None else [*(inputs[at] for at in self.kept), *(0 for _ in self.leaves)]

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any] | None:
        """None where a value is unusual, or Python raises: eager then does so at the right place."""
        if self.kept is None:
            return inputs
        values = list(inputs)
        try:
            for step in self.steps:
                values.append(step.function(*(values[x.position] if isinstance(x, _At) else x for x in step.operands)))
        except Exception:
            return None
        floats = [values[leaf.at.position] for leaf in self.leaves]
        for value, leaf in zip(floats, self.leaves, strict=True):
            if type(value) is not float or not all(is_usual(value) for is_usual in leaf.conditions):
                return None
        return [*(inputs[position] for position in self.kept), *map(bits_of, floats)]


def is_float_input(placeholder: torch.fx.Node) -> bool:
    return _IS_FLOAT in placeholder.meta


def lift_floats(graph: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, FloatInputs]:
    """See the module's docstring. The graph itself, where it has no such float."""
    if not any(map(_is_float, graph.graph.nodes)):
        return graph, FloatInputs()
    nodes = copy.deepcopy(graph.graph)  # Dynamo will look at its own once more
    inputs = list(nodes.find_nodes(op="placeholder"))
    at = {node: _At(position) for position, node in enumerate(inputs)}
    needed = _needed([node for node in nodes.nodes if _is_float(node)])
    steps = []
    for node in (node for node in nodes.nodes if node in needed and node not in at):
        steps.append(_Step(node.target, tuple(at.get(operand, operand) for operand in node.args)))
        at[node] = _At(len(at))
    floats = [node for node in at if _is_float(node)]
    taken = [node for node in floats if any(user not in needed for user in node.users)]
    leaves = tuple(_Leaf(at[node], tuple(_conditions(node, needed))) for node in taken)
    symbols = tuple(_replace(nodes, node, needed, number, inputs[-1]) for number, node in reversed([*enumerate(taken)]))
    for node in reversed(floats):
        nodes.erase_node(node)
    kept = tuple(position for position, node in enumerate(inputs) if not _is_float(node))
    return torch.fx.GraphModule(graph, nodes), FloatInputs(kept, tuple(steps), leaves, symbols[::-1])


def _needed(floats: Sequence[torch.fx.Node]) -> set[torch.fx.Node]:
    """The floats, and the ints that they are calculated of."""
    needed, stack = set(floats), list(floats)
    while stack:
        new = [node for node in stack.pop().all_input_nodes if node not in needed]
        needed.update(new)
        stack += new
    return needed


def _is_float(node: torch.fx.Node) -> bool:
    return type(node.meta.get("example_value")) is float


def _conditions(node: torch.fx.Node, calculated: Set[torch.fx.Node]) -> Iterator[Callable[[float], bool]]:
    for user in node.users:
        if user not in calculated:
            spots = _spots_of(user.target)
            yield from (spots[spot] for spot, value in _given(user.args, user.kwargs) if value is node)


def _replace(
    nodes: torch.fx.Graph, node: torch.fx.Node, calculated: Set[torch.fx.Node], number: int, last: torch.fx.Node
) -> sympy.Symbol:
    """Put an input behind ``last`` in the place of ``node``, where ops take it; returns the symbol of its bits."""
    symbol = sympy.Symbol(f"bits_{number}", integer=True)
    with nodes.inserting_after(last):
        placeholder = nodes.placeholder(f"{node.name}_bits")
    value = node.meta["example_value"]
    placeholder.meta |= node.meta | {_IS_FLOAT: True, "example_value": new_symint_of(symbol, bits_of(value))}
    node.replace_all_uses_with(placeholder, delete_user_cb=lambda user: user not in calculated)
    return symbol
