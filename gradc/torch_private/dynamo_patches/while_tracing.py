"""What a patch notes of a function while Dynamo traces it, and guards when all is traced.

noting: name, what makes the note of a graph's output -> the rule after ``OutputGraph.init_ambient_guards``
noted:  name -> the note of the function that is traced now; None while nothing is. Asked for by rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch._dynamo.source import GlobalStateSource
from torch._dynamo.symbolic_convert import InstructionTranslator

from gradc.torch_private.patches import Method


class Note(Protocol):
    def guard(self, builder: Any, guard: Any) -> None:
        """Add the guards: Dynamo calls this when all is traced."""


def noting(name: str, make_note: Callable[[Any], Note]) -> Method:
    def init_ambient_guards(_: Any, self: Any) -> None:
        note = vars(self)[name] = make_note(self)
        self.guards.add(GlobalStateSource().make_guard(note.guard))

    return init_ambient_guards


def noted(name: str) -> Any:
    try:
        return getattr(InstructionTranslator.current_tx().output, name, None)
    except AttributeError:  # nothing is traced
        return None
