"""Lay a Program out for the native executor: what each call reads, makes, frees and mutates, by slot number.

    plan_spec: Program -> PlanSpec                  plain tuples, which gradc._C.Plan takes

Nothing is decided when the plan runs that could be decided here. Arguments are put in the order of the op's schema, and
become operands:

    ("constant", value)   ("slot", number)   ("bound", number)   ("pack", (operand, ...))   ("default", None)

A bound operand is a whole argument that depends on symbols only, such as ``[s0, 32]``. All of a Program's bound
operands are computed by one function, once for each distinct tuple of symbol values (the executor keeps recent ones).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch

from gradc.errors import UnsupportedError
from gradc.ir.aliases import Aliases, bases_of, declared_views
from gradc.ir.at_sizes import size_symbols
from gradc.ir.floats import TERMS
from gradc.ir.ops import HANDLES, MAY_BE_KEPT, RELATIVE_VIEWS, STRIDES_OF_BASE
from gradc.ir.program import Program
from gradc.ir.text import symbolic
from gradc.ir.values import Instruction, Ref, Sym, TensorMeta, leaves
from gradc.torch_private.modes import without_dispatch_modes

_aten = torch.ops.aten

Operand = tuple[str, Any]
Meta = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int, torch.device]


@dataclasses.dataclass(frozen=True)
class Step:
    """One call. ``deaths``: slots that are cleared after it. ``writes``: slots whose version counter it bumps.

    ``device`` is where all tensors are that it reads and makes; None if that is no one device.

    ``shares`` holds (view, base) pairs of slots: the view takes the base's version counter. Autograd does so for every
    view; here only views that somebody could check are worth the time (see ``_checked_views``).

    Two things hold only while all tensors are laid out as when they were captured: ``views``, (view, base, difference
    of storage offsets, whether the base itself will do), for a call that makes views and nothing else; and ``reuse``, a
    slot that is dead, so that the call can write its result there. The call after which it died has it in ``kept``.
    ``known`` is a slot that holds what the kernel would compute of its operands once more (see ``_known_values``).
    """

    name: str
    overload: str
    operands: tuple[Operand, ...]
    outs: tuple[int | None, ...]
    deaths: tuple[int, ...]
    writes: tuple[int, ...]
    shares: tuple[tuple[int, int], ...]
    autocast: tuple[tuple[str, torch.dtype], ...]
    device: torch.device | None
    views: tuple[tuple[int, int, int, bool], ...] = ()
    kept: tuple[int, ...] = ()
    reuse: int | None = None
    known: int | None = None


@dataclasses.dataclass(frozen=True)
class PlanSpec:
    """A Program by slot numbers.

    ``bind`` maps the values of ``symbols`` to those of the bound operands. ``metas`` holds for each slot what its
    tensor was when captured, where no size of it is symbolic; ``is_static`` is True if that is known of every input.
    ``written``: positions of inputs whose memory some call writes to. ``is_dispatched``: calls go through all of
    torch's dispatcher, in grad mode, so that views and graphs are eager's. ``size_symbols``: places in ``symbols`` of those
    that sizes depend on.
    """

    name: str
    metas: tuple[Meta | None, ...]
    is_static: bool
    is_dispatched: bool
    inputs: tuple[int, ...]
    constants: tuple[tuple[int, torch.Tensor], ...]
    unread: tuple[int, ...]
    written: tuple[int, ...]
    symbols: tuple[tuple[str, int, int], ...]
    bind: Callable[..., tuple[Any, ...]] | None
    size_symbols: tuple[int, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Operand, ...]


def plan_spec(program: Program, out_variants: frozenset[str] = frozenset(), is_dispatched: bool = False) -> PlanSpec:
    """See the module's docstring. ``out_variants`` are the ops ("aten::mm") that can write into memory given to them.

    Raises:
        UnsupportedError: for a call that does not go through the dispatcher, such as a higher-order operator.
    """
    for instruction in program.instructions:
        _check_supported(instruction)
    binder = _Binder(program)
    metas = tuple(_meta(slot.meta) for slot in program.slots)
    last = program.last_uses()
    known = {} if is_dispatched else _known_values(program, metas, last)
    deaths, kept, reuses = plan_memory(program, metas, last, out_variants)
    checked = _checked_views(program)
    same = _unchanged(program) - checked
    steps = tuple(
        dataclasses.replace(
            _step(instruction, binder, tuple(deaths.get(index, ())), checked, _device(instruction, program)),
            kept=tuple(kept.get(index, ())),
            views=_strided_views(instruction, metas, same),
            reuse=reuses.get(index),
            known=known.get(index),
        )
        for index, instruction in enumerate(program.instructions)
    )
    outputs = tuple(binder.operand(out) for out in program.outputs)
    return PlanSpec(
        name=program.name,
        metas=metas,
        is_static=_is_static(program, metas),
        is_dispatched=is_dispatched,
        inputs=program.inputs,
        constants=tuple(program.constants.items()),
        unread=tuple(deaths.get(-1, ())),
        written=_written_inputs(program),
        symbols=tuple(program.symbols.values()),
        bind=binder.compile(),
        size_symbols=tuple(list(program.symbols).index(symbol) for symbol in size_symbols(program)),
        steps=steps,
        outputs=outputs,
    )


def _is_static(program: Program, metas: tuple[Meta | None, ...]) -> bool:
    """Symbols may be those of floats, which no size depends on."""
    slots = range(len(program.slots)) if program.symbols else program.inputs
    return all(metas[slot] is not None or program.slots[slot].meta is None for slot in slots)


def _check_supported(instruction: Instruction) -> None:
    schema = getattr(instruction.op, "_schema", None)
    if schema is None:
        raise UnsupportedError("operator without a schema", str(instruction.op), instruction.where)
    names = {argument.name for argument in schema.arguments}
    if len(instruction.args) > len(names) or not names >= set(instruction.kwargs):
        raise UnsupportedError("call that does not fit its schema", str(instruction.op), instruction.where)


def _written_inputs(program: Program) -> tuple[int, ...]:
    aliases = Aliases(program.instructions)
    written = {aliases.root_of(slot) for instruction in program.instructions for slot in instruction.writes}
    return tuple(position for position, slot in enumerate(program.inputs) if aliases.root_of(slot) in written)


def _device(instruction: Instruction, program: Program) -> torch.device | None:
    slots = (*instruction.reads, *(out for out in instruction.outs if out is not None))
    devices = {_plain_device(meta.device) for slot in slots if (meta := program.slots[slot].meta) is not None}
    return devices.pop() if len(devices) == 1 else None


def _plain_device(device: torch.device) -> torch.device:
    """As torch names a tensor's: the CPU has no number."""
    return torch.device("cpu") if device.type == "cpu" else device


def _step(
    instruction: Instruction, binder: _Binder, deaths: tuple[int, ...], checked: set[int], device: torch.device | None
) -> Step:
    schema = instruction.op._schema
    given = [argument.name for argument in schema.arguments[: len(instruction.args)]]
    values = dict(zip(given, instruction.args)) | instruction.kwargs
    operands = (
        binder.operand(values[argument.name], str(argument.real_type)) if argument.name in values else ("default", None)
        for argument in schema.arguments
    )
    return Step(
        name=schema.name,
        overload=schema.overload_name,
        operands=tuple(operands),
        outs=instruction.outs,
        deaths=deaths,
        writes=tuple(dict.fromkeys(instruction.writes)),
        shares=tuple((view, base) for view, base in declared_views(instruction) if view in checked),
        autocast=instruction.autocast.enabled,
        device=device,
    )


class _Binder:
    """Turns argument trees into operands, and collects those that depend on symbols."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.numbers: dict[tuple[str, str], int] = {}

    def operand(self, tree: Any, kind: str = "") -> Operand:
        """``kind`` is the type that the schema wants: 2 is not the same operand as an int and as a float."""
        kinds = {type(leaf) for leaf in leaves(tree)}
        if isinstance(tree, Ref):
            return ("slot", tree.slot)
        if Ref in kinds:
            return ("pack", tuple(self.operand(item, kind + "[]") for item in tree))
        if Sym in kinds:
            return ("bound", self.numbers.setdefault((kind, _source(tree)), len(self.numbers)))
        return ("constant", tree)

    def compile(self) -> Callable[..., tuple[Any, ...]] | None:
        """The function from symbol values to bound operands; None for a Program without any."""
        if not self.numbers:
            return None
        names = ", ".join(str(symbol) for symbol in self.program.symbols)
        source = f"lambda {names}: ({', '.join(tree for _, tree in self.numbers)},)"
        return eval(source, {"torch": torch, "math": math, **TERMS})


def _source(tree: Any) -> str:
    """An argument tree of Syms and constants as Python source."""
    if isinstance(tree, (tuple, list)):
        return "[" + ", ".join(_source(item) for item in tree) + "]"
    return symbolic(tree.expr) if isinstance(tree, Sym) else repr(tree)


def _checked_views(program: Program) -> set[int]:
    """Views whose version counter may be compared or bumped: outputs, mutated ones, and what those are views of."""
    checked = {out.slot for out in program.outputs if isinstance(out, Ref)}
    for instruction in reversed(program.instructions):
        checked.update(instruction.writes)
        checked.update(base for view, base in declared_views(instruction) if view in checked)
    return checked


def _unchanged(program: Program) -> set[int]:
    """Slots that no call mutates, so that nothing changes their sizes behind a view."""
    written = {slot for instruction in program.instructions for slot in instruction.writes}
    return set(range(len(program.slots))) - written


def _strided_views(
    instruction: Instruction, metas: tuple[Meta | None, ...], same: set[int]
) -> tuple[tuple[int, int, int, bool], ...]:
    """``Step.views``; () if the call may do more than make views. ``same``: slots that may be one with their base."""
    name = instruction.op._schema.name
    if name not in RELATIVE_VIEWS or not isinstance(instruction.args[0], Ref):
        return ()
    base = instruction.args[0].slot
    views: list[tuple[int, int, int, bool]] = []
    for view in instruction.outs:
        if view is None or view == base:
            return ()
        made, known = metas[view], metas[base]
        if made is None or known is None or (made[0], made[4]) != (known[0], known[4]):
            return ()
        if 1 in made[1] and name not in STRIDES_OF_BASE and not _has_real_strides(instruction, known, made):
            return ()
        is_same = instruction.op in HANDLES and view in same and base in same
        views.append((view, base, made[3] - known[3], is_same))
    return tuple(views)


def _has_real_strides(instruction: Instruction, base: Meta, made: Meta) -> bool:
    """Whether torch's own call gives these strides: fake tensors may give a dimension of size 1 another one."""
    others = leaves((instruction.args[1:], instruction.kwargs))
    is_small = math.prod(base[1]) <= SMALL
    if len(instruction.outs) != 1 or not is_small or any(isinstance(leaf, Ref | Sym) for leaf in others):
        return False
    with without_dispatch_modes():
        like = torch.empty_strided(base[1], base[2], dtype=base[0])
        return bool(instruction.op(like, *instruction.args[1:], **instruction.kwargs).stride() == made[2])


def _meta(meta: TensorMeta | None) -> Meta | None:
    if meta is None:
        return None
    sizes = [value for value in (*meta.shape, *meta.stride, meta.offset) if isinstance(value, int)]
    dims = len(meta.shape)
    if len(sizes) != 2 * dims + 1:
        return None
    return (meta.dtype, tuple(sizes[:dims]), tuple(sizes[dims:-1]), sizes[-1], _plain_device(meta.device))


# ---- what is known already


_FAR = 1024  # calls between the two: beyond, looking for memory at each takes too long


def _known_values(program: Program, metas: tuple[Meta | None, ...], last: dict[int, int]) -> dict[int, int]:
    """Calls whose kernel begins with a sigmoid that an earlier call has made -> the slot that holds it.

    Its life gets longer, which ``last`` is told of, if the peak of memory stays where it is.
    """
    same, live = _unchanged(program), _live_bytes(program, metas, last, _last_holders(program, metas, last))
    peak = max(live, default=0)
    made: dict[int, int] = {}  # an argument -> its sigmoid
    known: dict[int, int] = {}
    for index, call in enumerate(program.instructions):
        if call.op not in (_aten.sigmoid.default, _aten.silu_backward.default) or call.outs[0] is None:
            continue
        argument = call.reads[-1]
        if call.op is _aten.sigmoid.default:
            made |= {argument: call.outs[0]} if {argument, call.outs[0]} <= same else {}
            continue
        slot, meta = made.get(argument), metas[call.outs[0]]
        if slot is None or meta is None or meta != metas[slot]:
            continue
        longer = range(last.get(slot, index) + 1, index + 1)
        num_bytes = math.prod(meta[1]) * meta[0].itemsize
        if len(longer) <= _FAR and all(live[i] + num_bytes <= peak for i in longer):
            known[index] = slot
            last |= {slot: index} if longer else {}
            for i in longer:
                live[i] += num_bytes
    return known


# ---- memory


SMALL = 256 * 1024  # the executor has such memory at hand (memory.h)
SOON = 16


def plan_memory(
    program: Program, metas: tuple[Meta | None, ...], last: dict[int, int], out_variants: frozenset[str]
) -> tuple[dict[int, list[int]], dict[int, list[int]], dict[int, int]]:
    """Which slots are cleared after each call, which dead ones wait, and which of these a call writes its result to.

    A linear scan: a large result takes the most recently freed memory of its size, dtype and device, if that did not wait
    longer than ``SOON`` calls, nor while so much was live that peak memory would exceed eager's. The executor takes a dead
    slot's memory only if nobody else holds it, so an alias that is not seen here costs time, not bits.
    """
    holders = _last_holders(program, metas, last)
    dying: dict[int, list[int]] = {}
    for slot in holders:
        dying.setdefault(last[slot], []).append(slot)
    live = _live_bytes(program, metas, last, holders)
    peak = max(live, default=0)
    freed: dict[Memory, list[int]] = {}
    reuses: dict[int, int] = {}
    for index, instruction in enumerate(program.instructions):
        made = _made_memory(instruction, metas)
        if made is not None and made[1][1] > SMALL and instruction.op._schema.name in out_variants:
            candidates = freed.get(made[1], [])
            candidate = candidates.pop() if candidates else None
            if candidate is not None and index - last[candidate] <= SOON:
                waiting = range(last[candidate] + 1, index)
                if all(live[i] + made[1][1] <= peak for i in waiting):
                    reuses[index] = candidate
                    for i in waiting:
                        live[i] += made[1][1]
        for slot in dying.get(index, ()):
            freed.setdefault(holders[slot], []).append(slot)
    waiting_slots = set(reuses.values())
    deaths: dict[int, list[int]] = {}
    kept: dict[int, list[int]] = {}
    for slot, index in last.items():
        (kept if slot in waiting_slots else deaths).setdefault(index, []).append(slot)
    return deaths, kept, reuses


def _live_bytes(
    program: Program, metas: tuple[Meta | None, ...], last: dict[int, int], holders: dict[int, Memory]
) -> list[int]:
    """Bytes held while each call runs, beyond those held before the Program ran: what it made, less the inputs it freed."""
    change = [0] * (len(program.instructions) + 1)
    for index, instruction in enumerate(program.instructions):
        if (made := _made_memory(instruction, metas)) is not None:
            change[index] += made[1][1]
    for slot, memory in holders.items():
        change[last[slot] + 1] -= memory[1]
    for slot in program.inputs:
        if slot in last and (meta := metas[slot]) is not None:
            change[last[slot] + 1] -= math.prod(meta[1]) * meta[0].itemsize
    return list(itertools.accumulate(change[:-1]))


Memory = tuple[torch.dtype, int, torch.device]  # of so many bytes


def _made_memory(instruction: Instruction, metas: tuple[Meta | None, ...]) -> tuple[int, Memory] | None:
    """The slot and memory of the one tensor that a call makes; None if it makes more, or nothing, or an empty one."""
    if len(instruction.outs) != 1 or instruction.outs[0] is None or instruction.writes or bases_of(instruction):
        return None
    if instruction.op.namespace == MAY_BE_KEPT:
        return None
    meta = metas[instruction.outs[0]]
    if meta is None or not (numel := math.prod(meta[1])):
        return None
    return instruction.outs[0], (meta[0], numel * meta[0].itemsize, meta[4])


def _last_holders(program: Program, metas: tuple[Meta | None, ...], last: dict[int, int]) -> dict[int, Memory]:
    """The last slot to hold each memory that a call of the Program makes, nothing mutates, and nobody keeps."""
    aliases = Aliases(program.instructions)
    made = dict(memory for call in program.instructions if (memory := _made_memory(call, metas)) is not None)
    unchanged = _unchanged(program)
    return {
        max(sorted(slots), key=lambda slot: last[slot]): made[root]
        for root in made
        if aliases.root_of(root) == root and unchanged.issuperset(slots := aliases.family_of(root)) and last.keys() >= slots
    }
