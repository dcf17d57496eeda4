"""That two names are one object, or several: what Dynamo's guards ask of it is held back until it is clear who asks it.

For each ``a is b`` that was so while a function was traced, Dynamo has a function in Python go to both again at each call. The
one guard (see ``same_objects``) mostly knows: of two objects that are those that it saw, one is the other as it was.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable
from typing import Any

from torch._dynamo.guards import GuardBuilder

from gradc.torch_private.patches import Method
from gradc.torch_private.weaver import Rule, around

_HELD_BACK = "gradc_identities"


@dataclasses.dataclass(frozen=True)
class Identity:
    """One guard of this kind, as Dynamo writes it, and the names that it compares."""

    code: str
    verbose: str
    names: tuple[str, ...]


def hold_back() -> Rule:
    return around(GuardBuilder, "add_python_lambda_leaf_guard_to_root", _add)


def held_back(builder: Any) -> list[Identity]:
    found: list[Identity] = builder.__dict__.pop(_HELD_BACK, [])
    return found


def ask(builder: Any, identities: Iterable[Identity]) -> None:
    """Have Dynamo ask them, behind what is guarded at the root of ``builder``'s guards now."""
    if identities := list(identities):
        codes, verbose = [each.code for each in identities], [each.verbose for each in identities]
        builder.add_python_lambda_leaf_guard_to_root(codes, verbose, is_epilogue=True)  # said, it is not held back again


def _add(original: Method, self: Any, code_parts: list[str], verbose_code_parts: list[str], *others: Any, **more: Any) -> None:
    names = [] if others or more else [_names(code) for code in code_parts]
    if not names or not all(names):
        original(self, code_parts, verbose_code_parts, *others, **more)
        return
    held = self.__dict__.setdefault(_HELD_BACK, [])
    held.extend(map(Identity, code_parts, verbose_code_parts, names))


def _names(code: str) -> tuple[str, ...]:
    """``a is b`` or ``len({id(a), id(b)}) == 2`` -> a, b; none where it asks for something else."""
    match ast.parse(code, mode="eval").body:
        case ast.Compare(left=left, ops=[ast.Is()], comparators=[right]):
            compared = [left, right]
        case ast.Compare(left=ast.Call(args=[ast.Set(elts=ids)]), ops=[ast.Eq()], comparators=[ast.Constant()]):
            compared = [each.args[0] for each in ids if isinstance(each, ast.Call)]
        case _:
            return ()
    return tuple(ast.get_source_segment(code, each) or "" for each in compared)
