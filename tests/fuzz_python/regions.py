"""How many regions ran: Dynamo's bytecode counts before it calls one.

with watching_regions(): ...          num_regions_run() -> since the process began
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from torch._dynamo.bytecode_transformation import create_call_function, create_instruction
from torch._dynamo.codegen import PyCodegen
from torch._dynamo.output_graph import OutputGraph

_run = [0]


def num_regions_run() -> int:
    return _run[0]


@contextlib.contextmanager
def watching_regions() -> Iterator[None]:
    """What is compiled in here counts; the regions themselves, and how they are called, stay as they are."""
    original = OutputGraph.compile_and_call_fx_graph

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        instructions, source = original(self, *args, **kwargs)
        return [*_counting(self), *instructions], source

    OutputGraph.compile_and_call_fx_graph = call
    try:
        yield
    finally:
        OutputGraph.compile_and_call_fx_graph = original


def _note() -> None:
    _run[0] += 1


def _counting(output: Any) -> list[Any]:
    name = output.install_global("__fuzz_note", _note)
    code = PyCodegen(output.root_tx)
    code.add_push_null(lambda: code.append_output(code.create_load_global(name, add=True)))
    code.extend_output([*create_call_function(0, False), create_instruction("POP_TOP")])
    return code.get_instructions()
