"""What a patch notes of a function while Dynamo traces it, and guards when all is traced.

noting: name, what makes the note of a graph's output -> the replacement of ``OutputGraph.init_ambient_guards``
noted:  name -> the note of the function that is traced now; None while nothing is, or not for gradc
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

from torch._dynamo.source import GlobalStateSource
from torch._dynamo.symbolic_convert import InstructionTranslator

from gradc.torch_private.dynamo_patches.settings import is_compiling_for_gradc
from gradc.torch_private.patches import Method


class Note(Protocol):
    def guard(self, builder: Any, guard: Any) -> None:
        """Add the guards: Dynamo calls this when all is traced."""


def noting(name: str, make_note: Callable[[Any], Note]) -> Callable[[Method], Method]:
    def make(original: Method) -> Method:
        @functools.wraps(original)
        def init_ambient_guards(self: Any) -> None:
            original(self)
            if is_compiling_for_gradc():
                note = vars(self)[name] = make_note(self)
                self.guards.add(GlobalStateSource().make_guard(note.guard))

        return init_ambient_guards

    return make


def noted(name: str) -> Any:
    if not is_compiling_for_gradc():
        return None
    try:
        return getattr(InstructionTranslator.current_tx().output, name, None)
    except AttributeError:  # nothing is traced
        return None
