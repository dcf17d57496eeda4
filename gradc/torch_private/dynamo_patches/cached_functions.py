"""Functions in a ``functools.lru_cache``: what the cache has is taken while tracing, as long as it has that.

    answer_from_caches:   () -> Patch
    is_said_once:         (tx, function, arguments) -> whether a call that returns nothing needs no graph break
    held_back, ask, look: the guards of a graph's caches, which are added behind all others

Such a function gives one object to all who call it; inside it may read and write what it likes. gradc calls it while tracing
where the cache has the answer, so that nothing else runs; or where it is sure that the function reads its arguments alone, and
writes nothing. Each later call asks the cache for the same object before the graph, and again runs nothing else: where the
cache was emptied, or threw the answer out, the guard fails.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import gc
import itertools
import math
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import GlobalSource, GlobalStateSource
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.functions import WrapperUserFunctionVariable
from torch._dynamo.variables.lists import SizeVariable, TupleVariable
from torch._dynamo.variables.tensor import SymNodeVariable
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable
from torch._guards import CompileContext

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.handlers import may_run_again, runs_once
from gradc.torch_private.dynamo_patches.tensor_reachability import reach_tensors
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

_SCALARS = (bool, int, float, complex, str, bytes, type(None), type(...))
_CONSTANTS = (*_SCALARS, torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum)
_PLAIN = (bool, str, "bool", "str")  # as transformers asks what is installed, in every forward
_LIBRARIES = ("einops", "opt_einsum")  # they parse patterns and look for modules, and nobody writes into what they find
_READS = {"split", "partition", "join", "format", "strip", "startswith", "endswith", "replace", "count", "index", "find"}
_READS |= {"append", "extend", "items", "keys", "values", "get", "add", "isidentifier", "isdigit", "bit_length", "is_integer"}
_PURE_BUILTINS = {
    *(abs, all, any, bool, dict, divmod, enumerate, filter, float, frozenset, int, len, list, map, max, min, pow, range),
    *(reversed, round, set, sorted, str, sum, tuple, zip, AssertionError, KeyError, RuntimeError, TypeError, ValueError),
}
_PURE_MODULES = (math, operator, itertools)
_WRITES = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "IMPORT_NAME", "LOAD_CLASSDEREF", "LOAD_BUILD_CLASS")


def answer_from_caches() -> Patch:
    """See the module's docstring. What torch caches is a matter of torch's.

    A function that says it returns a bool or a str is called, too. One of a library that is known is traced through where its
    arguments are symbols: of these Python calculates at each call.
    """
    return Patch(
        "answer_from_caches",
        "Dynamo looks through caches: what is inside is called by each trace, and made anew by each graph.",
        (around(WrapperUserFunctionVariable, "call_function", _call),),
    )


def _call(original: Method, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    cached = self.wrapper_obj
    if not _is_cache_of_users(cached):
        return original(self, tx, args, kwargs)
    variables = [value.realize() for value in [*self.self_args(), *args, *kwargs.values()]]
    if _is_known(cached) and any(map(_is_symbolic, variables)):
        return original(self, tx, args, kwargs)
    known = _known(tx, self, variables, tuple(kwargs)) if all(map(_is_constant, variables)) else None
    return known if known is not None else end_graph("functools.lru_cache", "A cache remembers, and counts.")


def _is_cache_of_users(function: Any) -> bool:
    module = getattr(getattr(function, "__wrapped__", None), "__module__", None) or ""
    return hasattr(function, "cache_info") and module.split(".")[0] != "torch"


def _is_known(cached: Any) -> bool:
    return str(cached.__wrapped__.__module__).split(".")[0] in _LIBRARIES


def _is_symbolic(variable: VariableTracker) -> bool:
    if isinstance(variable, TupleVariable):
        return any(_is_symbolic(item.realize()) for item in variable.items)
    return isinstance(variable, SymNodeVariable)


def _is_constant(variable: VariableTracker) -> bool:
    """Whether it is one value for the graph: a constant, a tuple of them, or an object from outside that equals only itself."""
    if isinstance(variable, TupleVariable):
        return variable.python_type() in (tuple, torch.Size) and all(_is_constant(item.realize()) for item in variable.items)
    if isinstance(variable, UserDefinedObjectVariable):
        kind = type(variable.value)
        return bool(variable.source) and kind.__hash__ is object.__hash__ and kind.__eq__ is object.__eq__
    if not variable.is_python_constant():
        return False
    value = variable.as_python_constant()
    return isinstance(value, _CONSTANTS) or (isinstance(value, type) and type(value).__hash__ is type.__hash__)


def _value_of(variable: VariableTracker) -> Any:
    if isinstance(variable, TupleVariable):
        values = [_value_of(item.realize()) for item in variable.items]
        return torch.Size(values) if isinstance(variable, SizeVariable) else tuple(values)
    if isinstance(variable, UserDefinedObjectVariable) and variable.source:
        install_guard(variable.source.make_guard(GuardBuilder.ID_MATCH))
        return variable.value
    return variable.as_python_constant()


def _known(tx: Any, variable: Any, arguments: list[VariableTracker], names: tuple[str, ...]) -> VariableTracker | None:
    """What the cache has, or will have from now on; None where only a call of the function tells."""
    cached, num_named = variable.wrapper_obj, len(names)
    is_method = bool(variable.self_args())  # a bound one is made anew whenever it is read: no guard finds it again
    if variable.source is None or is_method or may_run_again(tx.output):
        return None
    values = [_value_of(each) for each in arguments]
    named = dict(zip(names, values[len(values) - num_named :], strict=True))
    entry = _Entry(cached, tuple(values[: len(values) - num_named]), named)
    try:
        is_found = entry.take() if entry.is_there() else _may_be_called(cached, values) and entry.make()
    except Exception:  # Python raises it where it is called
        return None
    if not is_found or reach_tensors([result := entry.result]):
        return None
    entry.note(tx)
    install_guard(variable.source.make_guard(GuardBuilder.ID_MATCH))
    tx.output.guards.add(GlobalStateSource().make_guard(entry.guard))
    if isinstance(result, _SCALARS):
        return ConstantVariable.create(result)
    return cast(
        VariableTracker, VariableTracker.build(tx, result, GlobalSource(tx.output.install_global_by_id("___cached", result)))
    )


def is_said_once(tx: Any, cached: Any, values: tuple[Any, ...]) -> bool:
    """Whether a call that returns nothing, as of ``logger.warning_once``, is in its cache: was made, or is made now."""
    if may_run_again(tx.output):
        return False
    entry = _Entry(cached, values, {})
    try:
        is_found = entry.take() if entry.is_there() else entry.make()
    except Exception:  # Python raises it where it is called
        return False
    if not is_found or entry.result is not None:
        return False
    entry.note(tx)
    tx.output.guards.add(GlobalStateSource().make_guard(entry.guard))
    return True


_HELD_BACK = "gradc_caches"
_made: dict[Any, set[Any]] = {}  # by what is compiled now: the calls that tracing it has made


class _Entry:
    """One entry of a cache: its arguments, and what it was when the function was traced."""

    def __init__(self, cached: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.cached, self.args, self.named = cached, args, named
        self.entries, self.key = _entries_of(cached), _key_of(args, named, cached.cache_parameters()["typed"])
        self.result: Any = None
        self.is_counted = False  # the call for which the function is compiled

    def is_there(self) -> bool:
        return self.entries is not None and self.key in self.entries

    def make(self) -> bool:
        """Call the function: this is the first call's own. False if the cache does not keep what it returns."""
        self.result, self.is_counted = self.cached(*self.args, **self.named), True
        return self.is_there()

    def take(self) -> bool:
        """Look for what the cache has, which does not count as a call."""
        key = next(key for key in self.entries or () if key == self.key)
        held = gc.get_referents(self.cached)
        if self.cached.cache_parameters()["maxsize"] is None:
            held = [key, (self.entries or {})[key]]
        self.result = next((result for each, result in itertools.pairwise(held) if each is key), self)
        return self.result is not self

    def note(self, tx: Any) -> None:
        """Remember that this call was made, where the trace begins again: then the cache has the answer."""
        runs_once(tx.output)
        compile_id, made = CompileContext.current_compile_id(), (id(self.cached), self.key)
        if self.is_counted:
            _made.setdefault(compile_id, set()).add(made)
        seen: set[Any] = vars(tx.output).setdefault("gradc_cached", set())
        self.is_counted = made in _made.get(compile_id, ()) and made not in seen
        seen.add(made)
        for old in [each for each in _made if each != compile_id]:
            del _made[old]

    def is_as_traced(self) -> bool:
        """Counts as a call, as the one that comes next does: a bounded cache throws out what was asked for longest ago."""
        if not self.is_there():
            return False
        if self.is_counted and CompileContext.try_get() is not None:  # Dynamo asks its guards when it has made them, or twice
            return True
        self.is_counted = True
        found = self.cached(*self.args, **self.named)
        return found is self.result or (type(found) in (int, str) and type(found) is type(self.result) and found == self.result)

    def guard(self, builder: Any, guard: Any) -> None:
        """Hold the guard back. Dynamo calls this when all is traced."""
        builder.__dict__.setdefault(_HELD_BACK, []).append((self, guard.user_stack))


def held_back(builder: Any) -> list[tuple[_Entry, Any]]:
    found: list[tuple[_Entry, Any]] = builder.__dict__.pop(_HELD_BACK, [])
    return found


def ask(root: Any, held: list[tuple[_Entry, Any]]) -> None:
    """Add the guards, behind all others. Where one of those fails, or an entry is gone, no cache is asked: it counts that."""
    look(root, held)
    _add(root, held, lambda entry: entry.is_as_traced())


def look(root: Any, held: list[tuple[_Entry, Any]]) -> None:
    """The same for guards that do not decide by themselves, and say why others failed."""
    _add(root, held, lambda entry: entry.is_there())


def _add(root: Any, held: list[tuple[_Entry, Any]], holds: Callable[[_Entry], bool]) -> None:
    for entry, user_stack in held:
        told = [f"the cache of {getattr(entry.cached, '__qualname__', 'a function')} has what it had"]
        root.add_epilogue_lambda_guard(lambda _, entry=entry: holds(entry), told, user_stack)


def _entries_of(cached: Any) -> dict[Any, Any] | None:
    """The dictionary that a cache keeps its entries in, which nothing tells but Python's collector; None if it has none."""
    held = gc.get_referents(cached)
    for before, after in zip(held[-2::-1], held[:0:-1], strict=True):  # the function stands behind the dictionary
        if type(before) is dict and isinstance(after, types.FunctionType) and before is not vars(cached):
            return before
    return None


@functools.lru_cache(1)
def _mark() -> Any:
    """What stands in a key between positional arguments and named ones."""

    @functools.lru_cache(None)
    def probe(**_: Any) -> None:
        return None

    probe(a=1)
    entries = _entries_of(probe)
    return next(iter(entries))[0] if entries else None


def _key_of(args: tuple[Any, ...], named: dict[str, Any], is_typed: bool) -> Any:
    if not is_typed and not named and len(args) == 1 and type(args[0]) in (int, str):
        return args[0]
    key = args
    if named:
        key = (*key, _mark(), *itertools.chain.from_iterable(named.items()))
    return (*key, *map(type, args), *map(type, named.values())) if is_typed else key


def _may_be_called(cached: Any, values: list[Any]) -> bool:
    """Whether the function may be called ahead of what was traced before it: it reads its arguments, and writes nothing."""
    if _is_known(cached):
        return True
    function, info = cached.__wrapped__, cached.cache_info()
    is_kept = info.maxsize is None or info.currsize < info.maxsize
    if function.__annotations__.get("return") in _PLAIN and is_kept and all(map(_is_scalar, values)):
        return True
    return all(map(_is_scalar, values)) and _is_pure(function, set())


def _is_scalar(value: Any) -> bool:
    return all(map(_is_scalar, value)) if isinstance(value, tuple) else type(value) in _SCALARS


def _is_pure(function: Any, seen: set[Any]) -> bool:
    """Whether its code calculates with its arguments alone, by functions of Python's own that do no more.

    No global is a constant: what was traced before may have written to it, which takes effect after the graph.
    """
    if function in seen:
        return True
    seen.add(function)
    if not isinstance(function, types.FunctionType) or function.__kwdefaults__ or function.__defaults__:
        return False
    names = {**vars(builtins), **function.__globals__}
    try:
        names |= {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ())}
    except ValueError:  # an empty cell
        return False
    return all(_is_pure_code(code, names, seen) for code in _codes_in(function.__code__))


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes_in(constant)


def _is_pure_code(code: types.CodeType, names: dict[str, Any], seen: set[Any]) -> bool:
    own = {*code.co_varnames, *code.co_cellvars}
    for instruction in dis.get_instructions(code):
        name, operation = instruction.argval, instruction.opname
        if operation in _WRITES:
            return False
        if operation in ("LOAD_ATTR", "LOAD_METHOD") and name not in _READS and not hasattr(math, name):
            return False
        is_from_outside = operation in ("LOAD_GLOBAL", "LOAD_NAME") or (operation == "LOAD_DEREF" and name not in own)
        if is_from_outside and name in names and not _is_pure_value(names[name], seen):
            return False
    return True


def _is_pure_value(value: Any, seen: set[Any]) -> bool:
    if isinstance(value, types.FunctionType):
        return _is_pure(value, seen)
    if isinstance(value, types.ModuleType):
        return value in _PURE_MODULES
    return type(value) in (type, types.BuiltinFunctionType) and value in _PURE_BUILTINS
