"""Print a Program as Python source that reads well and runs: what a report shows is what the interpreter executes.

    render:        Program -> (source, namespace)     source defines one function, named as the Program
    print_program: Program -> source

The function takes one list, empties it (so that values die where eager frees them), and returns a list. Every value
carries dtype, shape, stride and device; every call the user's source line or the autograd node it comes from.
"""

from __future__ import annotations

import math
from typing import Any

import sympy
import torch

from gradc.ambient import AutocastState
from gradc.ir.program import Program
from gradc.ir.values import Instruction, Ref, Sym
from gradc.torch_private.fakes import text_of_size


def print_program(program: Program) -> str:
    return render(program)[0]


def print_instruction(program: Program, instruction: Instruction) -> str:
    """One call of ``program`` as it stands in the printed text."""
    return _Renderer(program).call(instruction)[0]


def render(program: Program) -> tuple[str, dict[str, Any]]:
    """The source of ``program`` and the objects its names refer to, besides ``torch`` and the autocast switch."""
    return _Renderer(program).render()


class _Renderer:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.namespace: dict[str, Any] = {}
        self.lines: list[str] = []

    def render(self) -> tuple[str, dict[str, Any]]:
        program = self.program
        dying: dict[int, list[str]] = {}
        for slot, index in program.last_uses().items():
            dying.setdefault(index, []).append(self.name(slot))
        self.namespace |= {self.name(slot): tensor for slot, tensor in program.constants.items()}
        self.emit_head(dying.get(-1, []))
        where, autocast = "", AutocastState()
        for index, instruction in enumerate(program.instructions):
            if (place := _place(instruction)) != where:
                where = place
                self.lines.append(f"\n    # {where or 'No source line known for the following'}")
            if instruction.autocast != autocast:
                autocast = instruction.autocast
                self.lines.append(f"    set_autocast({self.constant(autocast)})")
            code, note = self.call(instruction)
            death = f";  del {', '.join(dying[index])}" if index in dying else ""
            self.lines.append(f"    {code}{death}{note}")
        self.lines.append(f"    return [{', '.join(self.argument(out) for out in program.outputs)}]")
        return "\n".join(self.lines) + "\n", self.namespace

    def emit_head(self, unread: list[str]) -> None:
        program = self.program
        self.lines.append(f"def {program.name}(args):")
        for position, slot in enumerate(program.inputs):
            value = program.slots[slot]
            label = f"  # {value.label}" if value.label else ""
            self.lines.append(f"    {value.name}: {str(value.meta or 'int')!r} = args[{position}]{label}")
        for symbol, (kind, position, dimension) in program.symbols.items():
            source = self.name(program.inputs[position])
            if source == str(symbol):
                continue
            read = {"int": source, "size": f"{source}.size({dimension})", "stride": f"{source}.stride({dimension})"}
            self.lines.append(f"    {symbol} = {read[kind]}")
        self.lines.append("    args.clear()" + (f";  del {', '.join(unread)}" if unread else ""))

    def name(self, slot: int | None) -> str:
        assert slot is not None
        return self.program.slots[slot].name

    def call(self, instruction: Instruction) -> tuple[str, str]:
        """The statement for one call, and a comment to end its line with."""
        arguments = [self.argument(value) for value in instruction.args]
        arguments += [f"{key}={self.argument(value)}" for key, value in instruction.kwargs.items()]
        call = f"torch.ops.{instruction.op}({', '.join(arguments)})"
        metas = [str(self.program.slots[out].meta) for out in instruction.outs if out is not None]
        if not metas:
            return call, ""
        if not instruction.returns_list:
            return f"{self.name(instruction.outs[0])}: {metas[0]!r} = {call}", ""
        if instruction.is_nested:
            call = f"flatten({call})"
        outs = "".join("_, " if out is None else f"{self.name(out)}, " for out in instruction.outs)
        return f"({outs}) = {call}", f"  # {'; '.join(metas)}"

    def argument(self, value: Any) -> str:
        match value:
            case Ref():
                return self.name(value.slot)
            case Sym():
                return symbolic(value.expr)
            case tuple():
                return "(" + "".join(self.argument(item) + ", " for item in value) + ")"
            case list():
                return "[" + ", ".join(self.argument(item) for item in value) + "]"
            case dict():
                return "{" + ", ".join(f"{key!r}: {self.argument(item)}" for key, item in value.items()) + "}"
            case None | bool() | int() | str():
                return repr(value)
            case float() if math.isfinite(value):
                return repr(value)
            case torch.dtype() | torch.layout() | torch.memory_format():
                return str(value)
            case torch.device():
                return f"torch.device({str(value)!r})"
            case _:
                return self.constant(value)

    def constant(self, value: Any) -> str:
        """The name of an object that has no source form: it goes into the namespace."""
        for name, known in self.namespace.items():
            if known is value or (isinstance(value, AutocastState) and known == value):
                return name
        prefix = "autocast" if isinstance(value, AutocastState) else "constant"
        name = f"{prefix}_{sum(key.startswith(prefix) for key in self.namespace)}"
        self.namespace[name] = value
        return name


def symbolic(expr: sympy.Basic) -> str:
    """A size expression as Python source."""
    return text_of_size(expr)


def _place(instruction: Instruction) -> str:
    return " <- ".join(part for part in (instruction.origin, instruction.where) if part)
