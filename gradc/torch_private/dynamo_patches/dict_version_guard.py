"""One guard for the modules, dictionaries and parameters that a compiled function reads, in place of a walk through them.

Dynamo guards what it met by the way that led there: for each parameter of a model a lookup of its module, of that one's
dictionary, of the dictionary of parameters, and so on. At each call that takes longer than a small layer's kernels. Here a
tree of Dynamo's guards is cut: what stands in dictionaries, which tell by their version whether they were written into, goes to
the one guard, which asks the whole tree where anything is not as it saw it; and so do lists of modules and parameters, which
it looks through. Everything else stays with Dynamo: the arguments, sizes that change.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import re
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch._C._dynamo import guards as of_dynamo
from torch._dynamo.guards import CheckFunctionManager, GuardManagerWrapper

from gradc.torch_private.dynamo_patches import cached_functions, identities
from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import after, instead

MakeGuard = Callable[[Callable[[dict[str, Any]], bool], dict[str, Any]], Any]

_FEWEST = 4  # objects that are worth another guard

# The leaf guards of Dynamo's that hold as long as what the one guard watches is as it was.
_OF_IDENTITY = {"ID_MATCH", "NONE_MATCH", "NOT_NONE", "TRUE_MATCH", "FALSE_MATCH"}
_OF_OBJECTS = {*_OF_IDENTITY, "TYPE_MATCH"}
_HELD_BY = {
    "constant": {*_OF_OBJECTS, "EQUALS_MATCH"},
    "dictionary": {*_OF_OBJECTS, "DICT_CONTAINS", "DICT_LENGTH", "DICT_VERSION"},
    "nothing": _OF_IDENTITY,
    "sequence": {*_OF_OBJECTS, "LENGTH_CHECK"},
    "tensor": {"TENSOR_MATCH"},
    "type": _OF_OBJECTS,
}
_CONSTANTS = (int, float, str, bool, bytes, type(None), types.CodeType)
_VARIABLES = ("local", "global")
_OF_ELEMENTS = ("ListGetItemGuardAccessor", "TupleGetItemGuardAccessor")


def guard_objects_at_once(make_guard: MakeGuard) -> Patch:
    """``make_guard`` makes the guard, of the guards that it asks and the function's globals; None where there can be none."""

    def compile_guards(_: Any, self: Any, builder: Any, *others: Any) -> None:
        _cut(self.guard_manager, builder, make_guard)

    return Patch(
        "guard_objects_at_once",
        "At each call Dynamo walks to every parameter again, by way of modules and dictionaries in which nothing has changed.",
        (
            identities.hold_back(),
            after(CheckFunctionManager, "compile_check_fn", compile_guards),
            instead(GuardManagerWrapper, "check_verbose", _check_verbose, scope=_is_cut),
        ),
    )


def _is_cut(guards: Any, *_: Any) -> bool:
    return "gradc_whole" in vars(guards)


def _check_verbose(self: Any, x: Any) -> Any:
    """Why guards fail, the whole tree tells. It looks at the state of the thread, which the one guard took for known."""
    self.gradc_guard.forget()
    return self.gradc_whole.check_verbose(x)


def _cut(guards: Any, builder: Any, make_guard: MakeGuard) -> None:
    whole = guards.root
    guard = make_guard(whole.check, builder.scope["G"])
    tree = _Tree()
    if guard is not None:
        tree.visit_root(whole)
    told, caches = identities.held_back(builder), cached_functions.held_back(builder)
    if tree.num_left_out < _FEWEST:
        identities.ask(builder, told)
        cached_functions.ask(whole, caches)
        return
    untold = [each for each in told if not tree.answers_for(each.names)]
    tree.tell(guard)
    cut = whole.clone_manager(lambda manager: manager.get_source() in tree.kept)
    cut.add_lambda_guard(guard.ask, ["what was read of modules and dictionaries is as it was"], None)
    identities.ask(builder, told)
    guards.root = cut
    identities.ask(builder, untold)
    cached_functions.look(whole, caches)
    cached_functions.ask(cut, caches)
    guards.gradc_whole, guards.gradc_guard = whole, guard


@dataclasses.dataclass
class _Step:
    """One object on the way: how it is found from the one before, and what is watched of it.

    Attributes:
        may_be_another: as arguments are, which a caller puts into a new list each time.
    """

    by: str
    origin: _Step | None
    key: Any
    watched: str
    may_be_another: bool = False
    is_needed: bool = False

    def need(self) -> None:
        step: _Step | None = self
        while step is not None and not step.is_needed:
            step.is_needed, step = True, step.origin


class _Tree:
    """Sorts Dynamo's guards into those that stay, by their source, and those that the one guard answers for.

    Attributes:
        kept: the sources of what stays, and of what leads there.
        num_left_out: how many objects Dynamo looks at no longer.
    """

    def __init__(self) -> None:
        self.kept: set[str] = set()
        self.num_left_out = 0
        self._steps: list[_Step] = []
        self._by_source: dict[str, _Step] = {}

    def visit_root(self, root: Any) -> None:
        self.kept.add(root.get_source())
        for accessor, manager in _ways(root):
            match type(accessor).__name__:
                case "FrameLocalsGuardAccessor" if (name := _variable(manager.get_source())) is not None:
                    self._visit(manager, "local", None, name)
                case "GlobalsGuardAccessor":
                    self.kept.add(manager.get_source())
                    for inner, variable in _ways(manager):
                        if isinstance(inner, of_dynamo.DictGetItemGuardAccessor):
                            self._visit(variable, "global", None, _argument(inner))
                        else:
                            self._keep(variable)
                case _:
                    self._keep(manager)

    def answers_for(self, sources: Iterable[str]) -> bool:
        """Whether the one guard looks for each of them: while it finds what it saw, they are one or several as then."""
        steps = [self._step_to(source) for source in sources]
        if not all(steps):
            return False
        for step in filter(None, steps):
            step.need()
            step.may_be_another = False
        return True

    def _step_to(self, source: str) -> _Step | None:
        if (step := self._by_source.get(source)) is not None:
            return step if step.is_needed else None
        if (entry := re.fullmatch(r"(.*)\['(\w+)'\]", source)) is None:
            return None
        origin = self._by_source.get(entry[1])
        if origin is None or not origin.is_needed or origin.watched != "dictionary":
            return None
        return self._add(source, _Step("item", origin, entry[2], "nothing"))

    def _add(self, source: str, step: _Step) -> _Step:
        self._steps.append(step)
        self._by_source[source] = step
        return step

    def tell(self, guard: Any) -> None:
        numbers: dict[int, int] = {}
        for step in self._steps:
            if step.is_needed:
                origin = 0 if step.origin is None else numbers[id(step.origin)]
                numbers[id(step)] = guard.add(step.by, origin, step.key, step.watched, step.may_be_another)

    def _visit(self, manager: Any, by: str, origin: _Step | None, key: Any) -> bool:
        """Whether the one guard answers for all that is guarded there."""
        leaves = {type(leaf).__name__ for leaf in manager.get_leaf_guards()}
        watched = _watched(manager, leaves)
        may_be_another = watched in ("sequence", "tensor") and not leaves & _OF_IDENTITY
        step = self._add(manager.get_source(), _Step(by, origin, key, watched, may_be_another))
        kind = manager.get_type_of_guarded_value()
        are_left_out = [self._follow(step, kind, *way) for way in _ways(manager)]
        is_held = leaves <= _HELD_BY[step.watched] and _is_lasting(step, kind)
        if not is_held or not all(are_left_out) or (by in _VARIABLES and not are_left_out):
            self.kept.add(manager.get_source())
            return False
        self.num_left_out += 1
        step.need()
        return True

    def _follow(self, step: _Step, kind: type, accessor: Any, manager: Any) -> bool:
        """What lies behind one object of the kind; see ``_visit``."""
        match accessor:
            case of_dynamo.GetGenericDictGuardAccessor() if step.watched == "type":
                return self._visit(manager, "dict", step, None)
            case of_dynamo.DictGetItemGuardAccessor() if step.watched == "dictionary" and _argument(accessor) is not None:
                return self._visit(manager, "item", step, _argument(accessor))
            case (str() as by, int() as place) if step.watched == "dictionary":
                return self._visit(manager, by, step, place)
            case of_dynamo.GetAttrGuardAccessor() if kind is types.ModuleType:
                return self._visit(manager, "attribute", step, _argument(accessor))
            case of_dynamo.ClosureGuardAccessor() if kind is types.FunctionType:
                return self._visit(manager, "closure", step, None)
            case of_dynamo.CodeGuardAccessor() if kind is types.FunctionType:
                return self._visit(manager, "code", step, None)
            case accessor if step.watched == "sequence" and type(accessor).__name__ in _OF_ELEMENTS:
                return self._visit(manager, "element", step, _number(accessor))
            case of_dynamo.GetAttrGuardAccessor() if kind is types.CellType and _argument(accessor) == "cell_contents":
                return self._visit(manager, "contents", step, None)
        return self._keep(manager)

    def _keep(self, manager: Any) -> bool:
        """Leave all of it with Dynamo."""
        self.kept.add(manager.get_source())
        for _, below in _ways(manager):
            self._keep(below)
        return False


def _watched(manager: Any, leaves: set[str]) -> str:
    kind = manager.get_type_of_guarded_value()
    if issubclass(kind, torch.Tensor):
        return "tensor"
    if kind is dict or (kind is collections.OrderedDict and not isinstance(manager, of_dynamo.DictGuardManager)):
        return "dictionary"  # an OrderedDict may change its order, which leaves the version as it is
    if kind in (list, tuple):
        return "sequence"
    if kind in _CONSTANTS:
        return "constant"
    return "type" if "TYPE_MATCH" in leaves or manager.get_accessors() else "nothing"


def _is_lasting(step: _Step, kind: type) -> bool:
    """False for what mostly is another at each call: a tensor that is an argument, or stands in a list of them; its numbers."""
    if step.watched == "tensor":
        return step.by in ("item", "value at") or (step.by == "element" and issubclass(kind, torch.nn.Parameter))
    return step.by != "element" or step.watched != "constant"


def _ways(manager: Any) -> Iterator[tuple[Any, Any]]:
    """What stands below: (accessor, guards); of the entries of a dictionary in their order, (("key at", place), guards)."""
    yield from zip(manager.get_accessors(), manager.get_child_managers(), strict=True)
    if isinstance(manager, of_dynamo.DictGuardManager):
        for place, entry in manager.get_key_value_managers().items():
            ways = ("key at", place), ("value at", place)
            yield from ((way, below) for way, below in zip(ways, entry, strict=True) if below is not None)


def _argument(accessor: Any) -> str | None:
    """``DictGetItemGuardAccessor('weight')`` -> "weight"; ``GetAttrGuardAccessor(F)`` -> "F"; None if it is no name."""
    text = accessor.repr().partition("(")[2][:-1]
    if isinstance(accessor, of_dynamo.GetAttrGuardAccessor):
        return text
    return _name(text)


def _number(accessor: Any) -> int:
    """``TupleGetItemGuardAccessor(2)``, ``ListGetItemGuardAccessor(2)`` -> 2."""
    return int(accessor.repr().partition("(")[2][:-1])


def _variable(source: str) -> str | None:
    """``L['x']`` -> "x"."""
    return _name(source[2:-1]) if source.startswith("L[") else None


def _name(text: str) -> str | None:
    try:
        found = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return None
    return found if isinstance(found, str) else None
