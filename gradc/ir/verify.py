"""What a legal Program is, as code that runs.

    verify:  Program -> None, or InternalError          checked: (Program, pass) -> the Program, verified under GRADC_VERIFY=1

Five things are checked, in this order, each of which may rely on those before:

    names      each is a Python identifier, stands for one slot, and hides nothing the printed text uses
    symbols    each is read off an input where its size stands, and every expression is made of them
    flow       each slot is made once, and before it is read; calls fit the schemas of their ops
    lifetimes  what ``last_uses`` frees is not read later and is no output; what it does not free is an output or a constant
    metadata   dtype, shape, strides, offset and device are what each call gives on fake tensors (static Programs only)

Running all of it costs about as much as tracing did, so it is off but in tests.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator
from typing import Any

import torch

from gradc.ambient import AutocastState, autocast_set_to, set_autocast
from gradc.config import is_set
from gradc.errors import InternalError
from gradc.ir.builder import PHANTOM
from gradc.ir.known import RESERVED
from gradc.ir.layouts import corrected
from gradc.ir.metadata import tensor_meta
from gradc.ir.ops import changes_layout
from gradc.ir.program import Program
from gradc.ir.text import print_instruction, print_program
from gradc.ir.values import Instruction, Ref, Sym, TensorMeta, leaves, map_leaves
from gradc.torch_private.fakes import FAKE_TENSOR_ERRORS, FakeTensorMode
from gradc.torch_private.modes import without_dispatch_modes

IS_ASKED_FOR = is_set("GRADC_VERIFY")

# Calls that were run on fake tensors and are right: pass after pass, program after program, most come again.
_known: set[Any] = set()
_MOST_KNOWN = 100_000
_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))


class _Illegal(Exception):
    """What is wrong, and the index of the call where it is, if it is in one."""

    def __init__(self, what: str, index: int | None = None) -> None:
        super().__init__(what)
        self.index = index


def checked(program: Program, made_by: str) -> Program:
    """``program`` as it is; with GRADC_VERIFY=1, verified first. ``made_by`` names the pass, for the error."""
    if IS_ASKED_FOR:
        verify(program, made_by)
    return program


def verify(program: Program, made_by: str = "") -> None:
    """Check that ``program`` is legal.

    Raises:
        InternalError: with what is wrong, the offending call, and the Program's text.
    """
    try:
        for check in (_check_names, _check_symbols, _check_flow, _check_lifetimes, _check_metadata):
            check(program)
    except _Illegal as error:
        raise InternalError(_message(program, made_by, error)) from None


def _message(program: Program, made_by: str, error: _Illegal) -> str:
    origin = f", made by {made_by}," if made_by else ""
    lines = [f"the program {program.name!r}{origin} is not legal: {error}"]
    try:
        if error.index is not None:
            lines.append(f"  in call {error.index}: {print_instruction(program, program.instructions[error.index])}")
        lines.append(f"the program:\n{print_program(program)}")
    except (IndexError, AttributeError):  # so broken that it has no text
        lines.append(f"the program:\n{program!r}")
    return "\n".join(lines)


# ---- names and symbols


def _check_names(program: Program) -> None:
    of_symbols = {str(symbol): program.inputs[at] for symbol, (_, at, _) in program.symbols.items() if at < len(program.inputs)}
    seen: set[str] = set()
    for number, slot in enumerate(program.slots):
        if not slot.name.isidentifier() or keyword.iskeyword(slot.name) or slot.name in RESERVED:
            raise _Illegal(f"slot {number} has the name {slot.name!r}, which the printed text cannot use")
        if slot.name in seen:
            raise _Illegal(f"two slots have the name {slot.name!r}")
        if of_symbols.get(slot.name, number) != number:
            raise _Illegal(f"slot {number} has the name of the symbol {slot.name!r}, but is not what it is read off")
        seen.add(slot.name)


def _check_symbols(program: Program) -> None:
    for symbol, (kind, position, dimension) in program.symbols.items():
        if position not in range(len(program.inputs)):
            raise _Illegal(f"symbol {symbol} is read off input {position}, but there are {len(program.inputs)} inputs")
        meta = program.slots[program.inputs[position]].meta if program.inputs[position] < len(program.slots) else None
        if kind == "int":
            if meta is not None:
                raise _Illegal(f"symbol {symbol} is read off input {position} as an int, but that is a tensor")
            continue
        dims = {"size": meta.shape, "stride": meta.stride}.get(kind, ()) if meta is not None else ()
        if dimension not in range(len(dims)) or dims[dimension] != Sym(symbol):
            raise _Illegal(f"symbol {symbol} is read off {kind} {dimension} of input {position}, which is not {symbol}")
    for index, instruction in enumerate(program.instructions):
        _check_bound(program, (instruction.args, instruction.kwargs), index)
    _check_bound(program, program.outputs, None)


def _check_bound(program: Program, tree: Any, index: int | None) -> None:
    for leaf in leaves(tree):
        if isinstance(leaf, Sym) and (unbound := sorted(map(str, leaf.expr.free_symbols - set(program.symbols)))):
            raise _Illegal(f"the symbol {unbound[0]} is read nowhere", index)


# ---- flow


def _check_flow(program: Program) -> None:
    num_slots = len(program.slots)
    defined: set[int] = set()
    for slot in (*program.inputs, *program.constants):
        if slot not in range(num_slots):
            raise _Illegal(f"an input or constant is slot {slot}, but there are {num_slots} slots")
        if slot in defined:
            raise _Illegal(f"{program.slots[slot].name} is two inputs, or an input and a constant")
        defined.add(slot)
    for index, instruction in enumerate(program.instructions):
        _check_reads(program, instruction.reads, defined, index)
        _check_call(instruction, index)
        for out in instruction.outs:
            if out is None:
                continue
            if out not in range(num_slots):
                raise _Illegal(f"a result is slot {out}, but there are {num_slots} slots", index)
            if out in defined and out not in instruction.reads:
                raise _Illegal(f"{program.slots[out].name} is made a second time", index)
            defined.add(out)
    _check_reads(program, tuple(out.slot for out in program.outputs if isinstance(out, Ref)), defined, None)


def _check_reads(program: Program, slots: tuple[int, ...], defined: set[int], index: int | None) -> None:
    reader = "returned" if index is None else "read"
    for slot in slots:
        if slot not in range(len(program.slots)):
            raise _Illegal(f"slot {slot} is {reader}, but there are {len(program.slots)} slots", index)
        if program.slots[slot].label == PHANTOM:
            raise _Illegal(f"{program.slots[slot].name} is {reader}, but it is {PHANTOM}", index)
        if slot not in defined:
            raise _Illegal(f"{program.slots[slot].name} is {reader}, but nothing made it before", index)


def _check_call(instruction: Instruction, index: int) -> None:
    """Whether arguments and results fit the op's schema. A higher-order operator has none that counts."""
    schema = getattr(instruction.op, "_schema", None)
    if schema is None:
        return
    names = [argument.name for argument in schema.arguments]
    if len(instruction.args) > len(names):
        raise _Illegal(f"{instruction.op} takes {len(names)} arguments, not {len(instruction.args)}", index)
    given = {*names[: len(instruction.args)], *instruction.kwargs}
    if unknown := [name for name in instruction.kwargs if name not in names[len(instruction.args) :]]:
        raise _Illegal(f"{instruction.op} has no argument {unknown[0]!r} left", index)
    missing = [a.name for a in schema.arguments if a.name not in given and not a.has_default_value()]
    if missing:
        raise _Illegal(f"{instruction.op} needs its argument {missing[0]!r}", index)
    returns = [result.type for result in schema.returns]
    has_list = any(isinstance(kind, torch.ListType) for kind in returns)
    if not has_list and len(instruction.outs) != len(returns):
        raise _Illegal(f"{instruction.op} returns {len(returns)} values, not {len(instruction.outs)}", index)
    if instruction.returns_list != (has_list or len(returns) > 1) and instruction.outs:
        raise _Illegal(f"returns_list is {instruction.returns_list}, which {instruction.op} denies", index)


# ---- lifetimes


def _check_lifetimes(program: Program) -> None:
    last = program.last_uses()
    outputs = {out.slot for out in program.outputs if isinstance(out, Ref)}
    kept = outputs | set(program.constants)
    for slot in last:
        if slot in kept:
            raise _Illegal(f"{program.slots[slot].name} is freed, but it is an output or a constant")
    for index, instruction in enumerate(program.instructions):
        for slot in (*instruction.reads, *(out for out in instruction.outs if out is not None)):
            if slot not in kept and slot not in last:
                raise _Illegal(f"{program.slots[slot].name} is never freed", index)
            if last.get(slot, index) < index:
                raise _Illegal(f"{program.slots[slot].name} is read after it is freed by call {last[slot]}", index)


# ---- metadata


def _check_metadata(program: Program) -> None:
    """Run the Program on fake tensors, call by call. What has no strided metadata, or cannot run so, is taken on trust."""
    if program.symbols or any(isinstance(value, Sym) for value in _numbers(program)):
        return
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with without_dispatch_modes(), torch.no_grad(), mode, autocast_set_to(AutocastState()):
        values = {slot: _fake(program.slots[slot].meta) for slot in program.inputs}
        values |= {slot: _fake(tensor_meta(tensor)) for slot, tensor in program.constants.items()}
        for index, instruction in enumerate(program.instructions):
            _check_results(program, instruction, index, values)


def _numbers(program: Program) -> Iterator[Any]:
    for slot in program.slots:
        if slot.meta is not None:
            yield from (*slot.meta.shape, *slot.meta.stride, slot.meta.offset)


def _check_results(program: Program, instruction: Instruction, index: int, values: dict[int, Any]) -> None:
    """Run the call. ``values``: slot -> a fake tensor, its metadata until one is needed, or None; it grows."""
    signature = _signature(program, instruction, values)
    if signature in _known:
        values |= {out: program.slots[out].meta for out in instruction.outs if out is not None}
        return
    values |= {slot: _fake(value) for slot in instruction.reads if isinstance(value := values[slot], TensorMeta)}
    results = _run(program, instruction, index, values)
    for position, out in enumerate(instruction.outs):
        if out is None:
            continue
        slot = program.slots[out]
        result = results[position] if results is not None else None
        if out in values:  # an argument that the call mutates and returns; a change of layout, such as t_, is declared
            _check_unmoved(slot.name, instruction, index, values, out, result)
            continue
        found = tensor_meta(result) if isinstance(result, torch.Tensor) else slot.meta
        if results is not None and not isinstance(result, torch.Tensor):
            raise _Illegal(f"{slot.name} is a tensor, but the call returns {result!r} there", index)
        if not _is_alike(found, slot.meta):
            raise _Illegal(f"{slot.name} is said to be {slot.meta}, but the call makes {found}", index)
        values[out] = result if isinstance(result, torch.Tensor) else _fake(slot.meta)
    if signature is not None and results is not None:
        if len(_known) == _MOST_KNOWN:
            _known.clear()
        _known.add(signature)


def _signature(program: Program, instruction: Instruction, values: dict[int, Any]) -> Any:
    """What the metadata of the results hangs on, and that metadata. None for a call that is to be run in any case."""
    is_known_kind = getattr(instruction.op, "namespace", None) == "aten" and not instruction.writes
    if not is_known_kind or not values.keys().isdisjoint(instruction.outs):
        return None
    outs = tuple(None if out is None else program.slots[out].meta for out in instruction.outs)

    def signed(tree: Any) -> Any:
        if isinstance(tree, (tuple, list)):
            return type(tree), *map(signed, tree)
        if isinstance(tree, Ref):
            value = values[tree.slot]
            return tensor_meta(value) if isinstance(value, torch.Tensor) else value
        if not isinstance(tree, _PLAIN):
            raise TypeError
        return type(tree), tree

    try:
        return instruction.op, signed(instruction.args), signed(tuple(instruction.kwargs.items())), instruction.autocast, outs
    except TypeError:
        return None


def _is_alike(one: TensorMeta | None, other: TensorMeta | None) -> bool:
    """Equal, but for strides that address nothing: fake tensors are of two minds about those of sizes 0 and 1."""
    if one is None or other is None or one.shape != other.shape:
        return one is other
    alike = (one.dtype, one.offset, one.device) == (other.dtype, other.offset, other.device)
    pairs = zip(one.shape, one.stride, other.stride)
    return alike and (0 in one.shape or all(a == b for size, a, b in pairs if size != 1))


def _check_unmoved(
    name: str, instruction: Instruction, index: int, values: dict[int, Any], out: int, result: torch.Tensor | None
) -> None:
    if result is None or values[out] is None:
        return
    if instruction.writes and out not in instruction.writes:
        raise _Illegal(f"{name} is returned by a call that mutates other arguments", index)
    if result is not values[out] and not _is_alike(tensor_meta(result), tensor_meta(values[out])):
        raise _Illegal(f"{name} changes from {tensor_meta(values[out])} to {tensor_meta(result)}", index)


def _run(program: Program, instruction: Instruction, index: int, values: dict[int, Any]) -> list[Any] | None:
    """What the call returns on fake tensors, flattened; None if it cannot run on them."""
    if any(values[slot] is None and program.slots[slot].meta is None for slot in instruction.reads):
        return None
    args, kwargs = (
        map_leaves(lambda leaf: values[leaf.slot] if isinstance(leaf, Ref) else leaf, tree)
        for tree in (instruction.args, instruction.kwargs)
    )
    old = {slot: tensor_meta(values[slot]) for slot in instruction.writes if values[slot] is not None}
    set_autocast(instruction.autocast)
    try:
        result = corrected(instruction.op, args, kwargs, instruction.op(*args, **kwargs))
    except (*FAKE_TENSOR_ERRORS, NotImplementedError):
        return None
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise _Illegal(f"the call raises {type(error).__name__}: {str(error).splitlines()[0]}", index) from error
    for slot, meta in old.items():
        if not _is_alike(tensor_meta(values[slot]), meta) and not changes_layout(instruction.op):
            raise _Illegal(f"{program.slots[slot].name} changes from {meta} to {tensor_meta(values[slot])}", index)
    found = [] if result is None else list(leaves(result))
    if len(found) != len(instruction.outs):
        raise _Illegal(f"the call returns {len(found)} values, not {len(instruction.outs)}", index)
    return found


def _fake(meta: TensorMeta | None) -> torch.Tensor | None:
    """A tensor of the fake mode around, laid out as ``meta`` says."""
    if meta is None:
        return None
    shape, stride, offset = [tuple(map(int, dims)) for dims in (meta.shape, meta.stride, (meta.offset,))]  # type: ignore[arg-type]
    extent = offset[0] + sum((size - 1) * step for size, step in zip(shape, stride)) + 1 if 0 not in shape else offset[0]
    return torch.empty(extent, dtype=meta.dtype, device=meta.device).as_strided(shape, stride, offset[0])
