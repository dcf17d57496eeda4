"""A Program: a flat list of ATen calls over named slots, which every backend runs and every report prints.

    Program: (inputs: list of tensors and ints) -> outputs: list of tensors, ints and Nones

Both captures (ahead of time, and of the live backward) yield a Program. It is immutable and knows nothing of autograd:
every call in it is one that ran below autograd when it was captured, in the order in which it ran. Calls may mutate
their arguments and return views; a Program keeps eager's calls as they are, but for those that passes leave out, so executing
it is executing eager.

Sizes may be symbolic: an argument that is a ``Sym`` is an expression over the Program's ``symbols``, each of which is
read off an input when the Program runs. ``text.print_program`` prints it.
"""

from __future__ import annotations

import dataclasses

import sympy
import torch

from gradc.ir.values import Instruction, Ref, Slot, Sym, leaves


@dataclasses.dataclass(frozen=True)
class Program:
    """See the module's docstring.

    ``slots`` holds every value; ``inputs`` the slots of the arguments in order; ``constants`` tensors that the Program
    owns, by slot; ``outputs`` one entry per result: Ref, Sym, or None for an undefined gradient.
    ``versions``: what eager leaves in the version counter of each output of a backward; None where an input's counts on.
    ``symbols`` says where each symbol is read: ``{s0: ("size", input position, dimension)}`` or ``("int", position, 0)``.
    """

    name: str
    slots: tuple[Slot, ...]
    inputs: tuple[int, ...]
    constants: dict[int, torch.Tensor]
    instructions: tuple[Instruction, ...]
    outputs: tuple[Ref | Sym | None, ...]
    symbols: dict[sympy.Symbol, tuple[str, int, int]] = dataclasses.field(default_factory=dict)
    versions: tuple[int | None, ...] = ()

    @property
    def syms(self) -> tuple[Sym, ...]:
        """The distinct symbolic expressions that running the Program needs, in order of first use."""
        used: dict[Sym, None] = {}
        for instruction in self.instructions:
            used.update((leaf, None) for leaf in leaves((instruction.args, instruction.kwargs)) if isinstance(leaf, Sym))
        used.update((out, None) for out in self.outputs if isinstance(out, Sym))
        return tuple(used)

    def last_uses(self) -> dict[int, int]:
        """slot -> index of the last instruction that reads or makes it (-1: an input nobody reads).

        Outputs and constants are not in it. Inputs are: a Program is called with a list that it empties, so that a
        saved activation dies where eager would free it.
        """
        kept = set(self.constants) | {out.slot for out in self.outputs if isinstance(out, Ref)}
        last = {slot: -1 for slot in self.inputs if slot not in kept and self.slots[slot].meta is not None}
        for index, instruction in enumerate(self.instructions):
            for slot in (*instruction.reads, *(out for out in instruction.outs if out is not None)):
                if slot not in kept:
                    last[slot] = index
        return last
