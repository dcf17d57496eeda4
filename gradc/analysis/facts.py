"""What can be read off a tape before anything is decided, each thing once.

analyse: Tape -> Facts
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Mapping, Sequence

import torch

from gradc.errors import UnsupportedError
from gradc.ir.ops import acts_elsewhere, is_random, may_raise
from gradc.ir.values import Instruction
from gradc.tape.tape import Edge, Node, Tape, edge_of
from gradc.tape.views import Views, is_recorded
from gradc.torch_private.autograd import sequence_nr

Use = tuple[Node, int]  # a node, and the number of one of its next edges

_aten = torch.ops.aten
# Of inference tensors alone: abs, clone, masked_fill and others count their writes into their own result, these do not.
_ARITHMETIC = frozenset((_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor))


@dataclasses.dataclass(frozen=True, eq=False)
class Facts:
    """What ``tape`` says. Most regions need only some of it, so each is worked out when it is first asked for."""

    tape: Tape

    @functools.cached_property
    def views(self) -> Views:
        return Views(self.tape)

    def uses_of(self, edge: Edge) -> Sequence[Use]:
        """Who sends gradients along a tape edge: the next edges of nodes that are it."""
        return self.uses.get(edge, ())

    def writes_into(self, tensor: torch.Tensor) -> Sequence[Instruction]:
        """The calls that write into the memory of ``tensor``, in their order."""
        slot = self.tape.slot_of(tensor)
        return [] if slot is None else [self.tape.program.instructions[number] for number in self._writes_into(slot)]

    def write_before(self, slot: int, made: int | None = None) -> Instruction | None:
        """The first call that writes into the memory of ``slot`` before another makes it, or makes the tensor in ``made``."""
        first = next(iter(self._writes_into(slot)), None)
        end = self._made_by[slot if made is None else made]
        return self.tape.program.instructions[first] if first is not None and first < end else None

    def is_made_of_inference(self, out: torch.Tensor, given: Sequence[torch.Tensor]) -> bool:
        """True if what makes ``out``, out of inference mode, reads inference tensors alone; ``given``: such inputs."""
        slot = self.tape.slot_of(out)
        if slot is None or slot not in self._made_by or out.is_inference():
            return False
        call = self.tape.program.instructions[self._made_by[slot]]
        read = [self.tape.tensor_of(slot) for slot in call.reads]
        is_alone = bool(read) and all(tensor.is_inference() or any(tensor is one for one in given) for tensor in read)
        return is_alone and call.op not in _ARITHMETIC

    @functools.cached_property
    def acts_outside(self) -> bool:
        """True if a call writes into memory from outside, or is another library's: what raises behind it has done so."""
        tape = self.tape
        given = {tape.aliases.root_of(slot) for slot in (*tape.program.inputs, *tape.program.constants)}
        return not given.isdisjoint(self._writes) or self._calls_other_libraries

    @functools.cached_property
    def may_raise(self) -> bool:
        """True if a call may raise for some values, or is another library's."""
        return self._calls_other_libraries or any(may_raise(call.op) for call in self.tape.program.instructions)

    @functools.cached_property
    def _calls_other_libraries(self) -> bool:
        ops = (call.op for call in self.tape.program.instructions)
        return any(acts_elsewhere(op) and not is_random(op) for op in ops)

    @functools.cached_property
    def draws(self) -> Sequence[Instruction]:
        """The calls that draw from a generator."""
        return [call for call in self.tape.program.instructions if is_random(call.op)]

    @functools.cached_property
    def uses(self) -> Mapping[Edge, Sequence[Use]]:
        """Edge -> ``uses_of`` it."""
        tape = self.tape
        found: dict[Edge, list[Use]] = collections.defaultdict(list)
        ends = {primal.edge for primal in tape.primals}
        seen: set[Node] = set()
        stack = [edge_of(out) for out in tape.outputs if isinstance(out, torch.Tensor) and out.grad_fn is not None]
        stack += [saved.edge for saved in tape.saved if saved.edge is not None]
        while stack:
            edge = stack.pop()
            node = edge[0]
            if node is None or node in seen or edge in ends or sequence_nr(node) < tape.first_sequence_nr:
                continue
            seen.add(node)
            for number, target in enumerate(node.next_functions):
                found[target].append((node, number))
                stack.append(target)
        return dict(found)

    def _writes_into(self, slot: int) -> Sequence[int]:
        """The numbers of the calls that write into the memory of ``slot``."""
        return self._writes.get(self.tape.aliases.root_of(slot), ())

    @functools.cached_property
    def _writes(self) -> Mapping[int, Sequence[int]]:
        """Root of a family -> the numbers of the calls that write into its memory."""
        found: dict[int, list[int]] = collections.defaultdict(list)
        for number, call in enumerate(self.tape.program.instructions):
            for root in {self.tape.aliases.root_of(slot) for slot in call.writes}:
                found[root].append(number)
        return dict(found)

    @functools.cached_property
    def _made_by(self) -> Mapping[int | None, int]:
        """Slot -> the number of the call that makes it."""
        found: dict[int | None, int] = {}
        for number, call in enumerate(self.tape.program.instructions):
            for slot in call.outs:
                found.setdefault(slot, number)
        return found


def analyse(tape: Tape) -> Facts:
    """See the module's docstring.

    Raises:
        UnsupportedError: for a view of a returned view. It hangs below that in eager's graph; made again from the base, it
            would hang beside it.
    """
    facts = Facts(tape)
    arguments = {id(primal.fake) for primal in tape.primals}
    returned = {id(out) for out in tape.outputs}
    for out in tape.outputs:
        if not isinstance(out, torch.Tensor) or not is_recorded(out) or id(facts.views.path_to(out)[0]) in arguments:
            continue
        if any(id(base) in returned for base in facts.views.between(out)):
            raise UnsupportedError("view of a view, both returned")
    return facts
