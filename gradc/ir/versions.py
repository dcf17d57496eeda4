"""Version counters of what a Program returns: those of eager, and what its calls leave in them.

    counted:   (program, version of each output in eager) -> Program with ``versions``
    recounted: Program -> (position of an output, its version in eager), where its calls leave another
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable

from gradc.ir.aliases import Aliases
from gradc.ir.program import Program
from gradc.ir.values import Ref


def counted(program: Program, versions: Iterable[int | None]) -> Program:
    """With ``Program.versions``: None for what is no tensor, and for a view of what it was given, whose counter counts on."""
    aliases = Aliases(program.instructions)
    foreign = {*program.inputs, *program.constants}
    own = tuple(
        version if isinstance(out, Ref) and aliases.root_of(out.slot) not in foreign else None
        for out, version in zip(program.outputs, versions, strict=True)
    )
    return dataclasses.replace(program, versions=own)


def recounted(program: Program) -> tuple[tuple[int, int], ...]:
    """What gradc's own ops write into their results shows in no Program, and what passes put together is written less often."""
    aliases = Aliases(program.instructions)
    counts = collections.Counter(aliases.root_of(slot) for call in program.instructions for slot in call.writes)
    own_calls = [call for call in program.instructions if getattr(call.op, "namespace", None) == "gradc"]
    own = {aliases.root_of(slot) for call in own_calls for slot in call.outs if slot is not None}
    return tuple(
        (position, version)
        for position, (out, version) in enumerate(zip(program.outputs, program.versions))
        if isinstance(out, Ref) and version is not None
        if (root := aliases.root_of(out.slot)) in own or version != counts[root]
    )
