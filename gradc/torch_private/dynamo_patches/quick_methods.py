"""``optimizer.step()`` and ``zero_grad()`` in bytecode, called without a frame: a builtin function in the method's place.

    QuickMethod:  (name, function, otherwise, backend) -> what calls ``optimizer.name()`` quickly if that is the class's
                  ``function``, or else ``otherwise(optimizer)``; None for a function that nobody knows
    call_quickly: tx, instructions, method, quick_method -> None; the instructions call it so, whatever the owner is then
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

from torch._dynamo.bytecode_transformation import create_swap
from torch._dynamo.codegen import PyCodegen

QuickMethod = Callable[[str, Any, Callable[[Any], Any], Any], Callable[[Any], Any] | None]


def call_quickly(tx: Any, instructions: list[Any], method: Any, quick_method: QuickMethod) -> None:
    """See the module's docstring. ``method`` has an owner and a name, is taken by ``load``, and called without arguments."""
    function = inspect.getattr_static(type(method.owner), method.name, None)
    quick = quick_method(method.name, function, operator.methodcaller(method.name), tx.output.compiler_fn)
    if quick is None:
        return
    name = tx.output.install_global_by_id(f"__gradc_{method.name}", quick)
    load = PyCodegen(tx.output.root_tx).create_load_global(name, add=True)
    place = next(place for place, inst in enumerate(instructions) if inst is method.load)
    for attribute in ("opcode", "opname", "arg", "argval"):  # the same instruction, for something may jump to it
        setattr(method.load, attribute, getattr(load, attribute))
    instructions[place + 1 : place + 1] = create_swap(2)  # above the function its first argument
