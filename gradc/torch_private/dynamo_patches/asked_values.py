"""Branches on what the values of one argument say, as ``if mask.all()``: asked with the guards, before the graph.

Eager asks the tensor each time, too. Where the answer is another one, the function is compiled for that. A tensor of ones that
was made inside is known without asking.
"""

from __future__ import annotations

import dataclasses
import dis
import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch._dynamo import config
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.variables.builder import GraphArg
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch.fx import Node
from torch.fx.node import map_aggregate, map_arg
from torch.utils import _pytree as pytree

from gradc.torch_private.autograd import storage_key
from gradc.torch_private.dynamo_names import BOOL
from gradc.torch_private.dynamo_patches.inplace_on_inputs import may_write
from gradc.torch_private.dynamo_patches.operators import dispatch_tables
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

_KNOWN = "gradc_asked"  # of Dynamo's output: question -> its answer
_MOST_CALLS, _MOST_ELEMENTS = 8, 2**20
_EXACT = {
    *("all", "any", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "abs", "bool", "int", "long", "to"),
    *("logical_not", "logical_and", "logical_or", "clone", "detach", "contiguous"),
    *("view", "reshape", "flatten", "squeeze", "unsqueeze", "numel", "size", "getitem", "triu", "tril"),
    *("ones_like", "zeros_like", "full_like"),
}
_OF_INTEGERS = {"sum", "max", "min", "and_", "or_", "invert"}  # of floats the order counts, or autocast
_FUNCTIONS = {
    getattr(home, name) for home in (operator, torch) for name in _EXACT | _OF_INTEGERS if callable(getattr(home, name, None))
}
_FAILURES = (RuntimeError, TypeError, ValueError, IndexError)
_JUMPS = [name for name in dis.opmap if "JUMP" in name and name.endswith(("_IF_TRUE", "_IF_FALSE", "_OR_POP"))]
_ASK = [*_JUMPS, *(name for name in ("UNARY_NOT", "TO_BOOL") if name in dis.opmap)]  # for the truth of what is on the stack


@dataclasses.dataclass(frozen=True)
class _Value:
    name: str

    def __repr__(self) -> str:
        return self.name


class _Call(NamedTuple):
    """Its arguments are constants, values, and tuples, lists and slices of such."""

    name: str
    function: Callable[..., Any]
    args: Any
    kwargs: Any

    def of(self, known: dict[str, Any]) -> Any:
        args, kwargs = map_aggregate(
            (self.args, self.kwargs), lambda each: known[each.name] if isinstance(each, _Value) else each
        )
        return self.function(*args, **kwargs)


class _Question(NamedTuple):
    """Whether the last of ``calls`` is true: of the ``argument``, by its name, and of tensors that are known.

    ``sizes``: a name -> the dimension of the argument whose size it is.
    """

    argument: str
    sizes: dict[str, int]
    known: dict[str, torch.Tensor]
    calls: tuple[_Call, ...]

    def ask(self, tensor: torch.Tensor | None) -> bool:
        value: Any = tensor
        known: dict[str, Any] = {**self.known, self.argument: tensor}
        if tensor is not None:
            known |= {name: tensor.shape[dim] for name, dim in self.sizes.items()}
        for call in self.calls:
            known[call.name] = value = call.of(known)
        return bool(value)

    def __str__(self) -> str:
        return "; ".join(f"{call.name} = {call.function.__name__}{(*call.args, *call.kwargs.items())}" for call in self.calls)


def ask_values_of_arguments() -> Patch:
    """See the module's docstring."""
    return Patch(
        "ask_values_of_arguments",
        "Dynamo ends the graph at every branch on a value. Models of transformers ask whether a mask is all ones.",
        (
            *(around(table, dis.opmap[name], _truth) for table in dispatch_tables() for name in _ASK),
            around(TensorVariable, BOOL, _bool),
            around(TensorVariable, "method_item", _item),
        ),
    )


def _truth(original: Method, self: Any, inst: Any) -> Any:
    if isinstance(value := self.stack[-1].realize(), TensorVariable) and (answer := _answer(self, value)) is not None:
        self.stack[-1] = ConstantVariable.create(answer)
    return original(self, inst)


def _bool(original: Method, self: Any, tx: Any) -> Any:
    answer = _answer(tx, self)
    return original(self, tx) if answer is None else ConstantVariable.create(answer)


def _item(original: Method, self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
    is_asked = self.dtype is torch.bool and not args and not kwargs
    answer = _answer(tx, self) if is_asked else None
    return original(self, tx, *args, **kwargs) if answer is None else ConstantVariable.create(answer)


def _answer(tx: Any, value: TensorVariable) -> bool | None:
    """None where more than one argument decides, or what may have been written into."""
    node, output = value.as_proxy().node, tx.output
    is_plain = len(output.tracers) == 1 and node.meta["example_value"].numel() == 1
    needed = _needed(node) if is_plain and not _has_many_variants(output.root_tx.f_code) else None
    if needed is None or _may_be_written(needed):
        return None
    argument = next(filter(_is_argument, needed), None)
    made = {each.name: _made(each) for each in needed if _number(each) is not None}
    sizes = {each.name: _dimension(argument, each) for each in needed if _is_size(each)}
    calls = tuple(_call(each) for each in needed if each is not argument and each.name not in {**made, **sizes})
    if argument is None:
        return _Question("", {}, made, calls).ask(None) if calls else bool(made[node.name])
    known: dict[str, bool] = vars(output).setdefault(_KNOWN, {})
    question, given = _Question(argument.name, sizes, made, calls), argument.meta["grapharg"]
    key = f"{given.source.name}: {question}"
    if key not in known:
        try:
            known[key] = question.ask(given.example)
        except _FAILURES:  # as in eager, or of no values, as on the meta device
            return None
        output.guards.add(given.source.make_guard(_guard(question, known[key])))
    return known[key]


def _has_many_variants(code: Any) -> bool:
    """Where answers come and go, the last ones that Dynamo would compile end at the branches, and serve for all."""
    return len(_debug_get_cache_entry_list(code)) + 2 >= config.recompile_limit


def _guard(question: _Question, answer: bool) -> Callable[[Any, Any], None]:
    def holds(tensor: torch.Tensor) -> bool:
        try:
            return question.ask(tensor) is answer
        except _FAILURES:  # of another shape or type
            return False

    def add(builder: Any, guard: Any) -> None:
        words = [f"whether {question.argument} is true{f' of {question}' if question.calls else ''}: {answer}"]
        builder.get_guard_manager(guard).add_lambda_guard(holds, words, guard.user_stack)

    return add


def _needed(node: Node) -> list[Node] | None:
    """What the node's value is made of, in order; None if that is more than an argument, its sizes, and known calls."""
    needed: set[Node] = set()
    waiting = [node]
    while waiting:
        each = waiting.pop()
        is_end = _is_argument(each) or _is_size(each) or _number(each) is not None
        if len(needed) > _MOST_CALLS or not (is_end or _is_exact(each)):
            return None
        needed.add(each)
        waiting += [] if is_end else each.all_input_nodes
    arguments, sizes = [*filter(_is_argument, needed)], [*filter(_is_size, needed)]
    if len(arguments) > 1 or not all(arguments and _dimension(arguments[0], size) >= 0 for size in sizes):
        return None
    return [each for each in node.graph.nodes if each in needed]


def _is_size(node: Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.SymInt) and bool(value.node.expr.is_symbol)


def _dimension(argument: Node | None, size: Node) -> int:
    """The one of the argument's that has this size, whatever it is; -1 if none has."""
    sizes = argument.meta["example_value"].shape if argument is not None else ()
    return next((dim for dim, one in enumerate(sizes) if _is_same(one, size.meta["example_value"])), -1)


def _is_same(one: Any, other: Any) -> bool:
    return isinstance(one, torch.SymInt) and bool(one.node.expr == other.node.expr)


def _is_argument(node: Node) -> bool:
    given = node.meta.get("grapharg")
    if node.op != "placeholder" or not isinstance(given, GraphArg):
        return False
    return given.is_tensor and not given.pass_arg_as_tensor and given.source is not None


def _number(call: Node) -> bool | int | float | None:
    """That of which a tensor is made, again and again, whatever tensor it is made like; None if it is not, or too large."""
    fake = call.meta.get("example_value")
    number: Any = _MAKERS[call.target](call) if call.op == "call_function" and call.target in _MAKERS else None
    if type(number) not in (bool, int, float) or not isinstance(fake, torch.Tensor):
        return None
    is_known = fake.numel() <= _MOST_ELEMENTS and not fake.is_complex() and all(type(size) is int for size in fake.shape)
    return number if is_known else None


def _made(call: Node) -> torch.Tensor:
    fake, number = call.meta["example_value"], _number(call)
    assert number is not None
    return torch.full(fake.shape, number, dtype=fake.dtype, device=fake.device)


def _filled(call: Node) -> Any:
    return call.args[1] if len(call.args) > 1 else call.kwargs.get("fill_value")


_MAKERS: dict[Any, Callable[[Node], Any]] = {
    **dict.fromkeys((torch.ones, torch.ones_like), lambda _: 1),
    **dict.fromkeys((torch.zeros, torch.zeros_like), lambda _: 0),
    **dict.fromkeys((torch.full, torch.full_like), _filled),
}


def _is_exact(call: Node) -> bool:
    """Its result is that of a call by itself, wherever it stands."""
    name = str(call.target) if call.op == "call_method" else _name(call) if call.target in _FUNCTIONS else ""
    made_of = [each.meta.get("example_value") for each in call.all_input_nodes]
    if "out" in call.kwargs or not all(isinstance(each, torch.Tensor | torch.SymInt) for each in made_of):
        return False
    return name in _EXACT or (name in _OF_INTEGERS and not any(map(_is_rounded, made_of)))


def _is_rounded(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _call(node: Node) -> _Call:
    function = getattr(torch.Tensor, node.target) if isinstance(node.target, str) else node.target
    named: Any = lambda each: _Value(each.name)
    args, kwargs = map_arg((node.args, node.kwargs), named)
    return _Call(node.name, function, args, kwargs)


def _name(call: Node) -> str:
    return str(getattr(call.target, "__name__", ""))


def _may_be_written(needed: Sequence[Node]) -> bool:
    """Before the question: memory of what it is made of. Arguments that are apart now may share theirs at another call."""
    nodes = needed[0].graph.nodes
    is_of_argument = any(each.op == "placeholder" for each in needed)
    asked = {key for each in nodes if each in needed or (is_of_argument and each.op == "placeholder") for key in _memory(each)}
    return any(not asked.isdisjoint(_memory(value)) for node in filter(_may_write, nodes) for value in node.all_input_nodes)


def _may_write(node: Node) -> bool:
    """Or is no one's of torch's, who may do anything."""
    is_others = isinstance(node.target, torch._ops.OperatorBase | torch._ops.OpOverloadPacket)
    return node.op == "call_module" or is_others or _name(node) in ("batch_norm", "instance_norm") or may_write(node)


def _memory(node: Node) -> Iterator[Hashable]:
    for value in pytree.tree_leaves(node.meta.get("example_value")):
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            yield storage_key(value)
