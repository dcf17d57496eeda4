"""Objects that were two while a function was traced, and may be one at a later call: ``a is b``, keys of a set, written lists.

Dynamo guards two names of one object, but for a local and a global one, and not that two objects are two. Where the program
compares or hashes them, that decides a branch; where it writes into one of them, what it reads of the other.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.variables import LazyVariableTracker, builder, builtin, object_protocol
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.hashable import HashableTracker
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

from gradc.torch_private.dynamo_patches.while_tracing import noted, noting
from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import after, before

_APART = "gradc_apart"
_BY_PLACE = (object.__hash__, torch.Tensor.__hash__)  # of objects that are equal to nothing but themselves


def guard_what_is_told_apart() -> Patch:
    """See the module's docstring."""
    return Patch(
        "guard_what_is_told_apart",
        "Two objects that Dynamo met by two names are two for good, also where a later call has one object by both.",
        (
            after(OutputGraph, "init_ambient_guards", noting(_APART, lambda _: _Apart())),
            *(after(module, "vt_identity_compare", _compare) for module in (builtin, object_protocol)),
            before(BuiltinVariable, "_comparison_with_tensor", _compare_tensors),
            after(HashableTracker, "__init__", _key),
            before(SideEffects, "_track_obj", _meet),
            before(SideEffects, "track_mutable", _meet),
            after(SideEffects, "mutation", _write),
            after(SideEffects, "store_attr", _write),
            after(builder, "make_dupe_guard", _dupe_guard),
        ),
    )


def _compare(result: Any, left: Any, right: Any) -> Any:
    if result is not None and not result.as_python_constant() and left.realize().mutation_type is not None:
        _note_pair(left, right)
    return result


def _compare_tensors(self: Any, tx: Any, left: Any, right: Any) -> None:
    if self.fn in (operator.is_, operator.is_not):
        _note_pair(left, right)


def _key(_: Any, self: Any, vt: Any) -> None:
    if isinstance(vt, LazyVariableTracker) and not vt.is_realized():
        return  # a function or a class, hashed as it is; realized, Dynamo could not hash each of them
    if isinstance(vt, UserDefinedObjectVariable | TensorVariable) and vt.source and (apart := _now()) is not None:
        apart.keys[vt.source] = None


def _meet(self: Any, item: Any, variable: Any, *args: Any, **kwargs: Any) -> None:
    if variable.source and (apart := _now()) is not None:
        apart.met[variable.source] = type(item)


def _write(_: Any, self: Any, _item: Any, *args: Any, **kwargs: Any) -> None:
    if _item.source and (apart := _now()) is not None:
        apart.written.add(_item.source)


def _dupe_guard(guard: Any, obj_source: Any, dupe_source: Any) -> Any:
    if guard is None and dupe_source and dupe_source != obj_source and _now() is not None:
        return functools.partial(GuardBuilder.DUPLICATE_INPUT, source_b=dupe_source)
    return guard


def _note_pair(left: Any, right: Any) -> None:
    is_one_kind = type(left.realize()) is type(right.realize())
    if left.source and right.source and is_one_kind and (apart := _now()) is not None:
        apart.pairs[left.source, right.source] = None


def _now() -> _Apart | None:
    apart: _Apart | None = noted(_APART)
    return apart


class _Apart:
    """What one function told apart.

    Attributes:
        pairs: what it compared.
        keys: what it hashed; each is compared with each.
        met: objects that can be written into, with their types.
        written: those that it wrote into.
    """

    def __init__(self) -> None:
        self.pairs: dict[tuple[Any, Any], None] = {}
        self.keys: dict[Any, None] = {}
        self.met: dict[Any, type] = {}
        self.written: set[Any] = set()

    def guard(self, builder: Any, guard: Any) -> None:
        """Add the guard: Dynamo calls this when all is traced."""
        for sources in self._groups(builder):
            ids = {source.name: id(builder.get(source)) for source in sources}
            if len(ids) < 2:
                continue
            code = f"len({{{', '.join(f'id({name})' for name in ids)}}}) == {len(set(ids.values()))}"
            builder.add_python_lambda_leaf_guard_to_root([code], [code])

    def _groups(self, builder: Any) -> Iterator[Iterable[Any]]:
        yield from self.pairs
        yield (source for source in self.keys if type(builder.get(source)).__hash__ in _BY_PLACE)
        for kind in dict.fromkeys(self.met[source] for source in self.met if source in self.written):
            yield (source for source in self.met if self.met[source] is kind)
