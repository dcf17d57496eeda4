"""What torch refuses, compiled: every error must come, with eager's type and words, whether its result is used or not.

    subjects: Choice -> iterator of Subject          judge: (Subject name, number, Refused, Compiler) -> a Verdict for each way

Swept are the error inputs of torch's op samples; its samples with other values in one tensor, where eager raises then: an index
out of bounds, a matrix that is singular; and torch.distributions with parameters and values out of bounds. Where an error hangs
on values, a call with good ones comes first as well.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import distributions
from torch.distributions import constraints
from torch.utils import _pytree as pytree

from tests.compilers import EAGER, Compiler
from tests.sweep.judge import Verdict, time_limit
from tests.sweep.suites import Choice, Sample, Subject, op_db

CRASHES = {"linalg.eig": "nan inf", "linalg.eigvals": "nan inf", "geqrf": "nan inf"}  # eager itself, with these values
_VALUES = {
    "int": {"1000": 1000, "-1000": -1000, "0": 0},
    "float": {"nan": float("nan"), "inf": float("inf"), "-1": -1.0, "0": 0.0, "2": 2.0},
    "bool": {"True": True, "False": False},
}
_SAMPLES = 6  # of each op, to be given other values


@dataclasses.dataclass(frozen=True)
class Refused(Sample):
    """A call that eager refuses. ``good``: the same with values that it takes, if the error hangs on values."""

    good: tuple[Any, ...] | None = None

    def runs(self) -> list[list[tuple[Any, ...]]]:
        return [[self.arguments], *([[self.good, self.arguments, self.arguments]] if self.good is not None else [])]


def subjects(choice: Choice) -> Iterator[Subject]:
    ops = {op.name + (f".{op.variant_test_name}" if op.variant_test_name else ""): op for op in op_db()}
    for name, op in ops.items():
        yield Subject(f"values of {name}", lambda op=op, name=name: list(_other_values(op, name, choice)))
    for cls in distributions.__all__:
        made = getattr(distributions, cls)
        if isinstance(made, type) and issubclass(made, distributions.Distribution):
            yield Subject(f"distributions.{cls}", lambda made=made: list(_distribution(made)))
    for name, op in ops.items():
        if op.error_inputs_func is not None:
            yield Subject(f"error inputs of {name}", lambda op=op: list(_error_inputs(op)))


# ---- what is refused


def _error_inputs(op: Any) -> Iterator[Refused]:
    for error in op.error_inputs("cpu"):
        sample = error.sample_input
        yield Refused(_call_of(op.op), (sample.input, sample.args, sample.kwargs))


def _call_of(function: Any) -> Callable[..., Any]:
    def call(input: Any, args: Any, kwargs: Any) -> Any:
        return function(input, *args, **kwargs)

    return call


def _other_values(op: Any, name: str, choice: Choice) -> Iterator[Refused]:
    met: set[str] = set()
    call = _call_of(op.op)
    dtypes = [dtype for dtype in (choice.dtype, torch.int64) if op.supports_dtype(dtype, "cpu")]
    for dtype in dtypes:
        can_grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
        for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=can_grad), _SAMPLES):
            good = (sample.input, sample.args, sample.kwargs)
            if _error_of(call, good) is not None:
                continue
            for bad in _spoilt(good, CRASHES.get(name, "").split()):
                error = _error_of(call, bad)
                kind = None if error is None else re.sub(r"[\d.e+-]+|nan|inf", "#", f"{type(error).__name__} {error}")
                if kind is not None and kind not in met:
                    met.add(kind)
                    yield Refused(call, bad, good=good)


def _spoilt(arguments: tuple[Any, ...], crashes: list[str]) -> Iterator[tuple[Any, ...]]:
    """The arguments with one tensor full of another value."""
    flat, spec = pytree.tree_flatten(arguments)
    for position, tensor in enumerate(flat):
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or not tensor.numel():
            continue
        kind = "bool" if tensor.dtype == torch.bool else "float" if tensor.is_floating_point() else "int"
        for name, value in _VALUES[kind].items():
            if name not in crashes and not tensor.is_complex():
                other = torch.full_like(tensor.detach(), value).requires_grad_(tensor.requires_grad)
                yield pytree.tree_unflatten([*flat[:position], other, *flat[position + 1 :]], spec)


def _error_of(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Exception | None:
    try:
        call(*Sample(call, arguments).fresh())
    except Exception as error:
        return error
    return None


_GOOD: dict[Any, Callable[[], Any]] = {
    constraints.real: lambda: torch.zeros(3),
    constraints.positive: lambda: torch.ones(3),
    constraints.nonnegative: lambda: torch.ones(3),
    constraints.unit_interval: lambda: torch.full((3,), 0.5),
    constraints.simplex: lambda: torch.full((3,), 1 / 3),
    constraints.real_vector: lambda: torch.zeros(3),
    constraints.nonnegative_integer: lambda: torch.ones(3),
    constraints.positive_definite: lambda: torch.eye(3),
    constraints.lower_cholesky: lambda: torch.eye(3),
}
_BAD = {
    constraints.real: (float("nan"),),
    constraints.real_vector: (float("nan"),),
    constraints.positive_definite: (-1.0, float("nan")),
    constraints.lower_cholesky: (-1.0,),
}


def _distribution(cls: type[distributions.Distribution]) -> Iterator[Refused]:
    """Its parameters one by one, and then values that it does not have."""
    names = [name for name, constraint in _constraints(cls).items() if constraint in _GOOD]
    names = [name for name in names if name not in ("logits", "covariance_matrix", "precision_matrix")]
    good = {name: _GOOD[_constraints(cls)[name]]() for name in names}

    def construct(parameters: dict[str, torch.Tensor], value: torch.Tensor) -> Any:
        return cls(**parameters).log_prob(value)

    with torch.no_grad():
        try:
            value = cls(**good).sample()
            cls(**good).log_prob(value)
        except Exception:
            return
    for name in names:
        for number in _BAD.get(_constraints(cls)[name], (-1.0, float("nan"))):
            bad = {**good, name: torch.full_like(good[name], number)}
            if _error_of(construct, (bad, value)) is not None:
                yield Refused(construct, (bad, value), good=(good, value))
    for number in (-1.0, 0.5, 2.5, float("nan")):
        bad_value = torch.full_like(value, number, dtype=torch.get_default_dtype())  # integers, too, may be given as floats
        if _error_of(construct, (good, bad_value)) is not None:
            yield Refused(construct, (good, bad_value), good=(good, value))


def _constraints(cls: Any) -> dict[str, Any]:
    found = cls.arg_constraints
    return found if isinstance(found, dict) else {}


# ---- the ways to meet it


def _alone(compile: Compiler, refused: Refused) -> Callable[..., Any]:
    return compile(refused.function)


def _unused(compile: Compiler, refused: Refused) -> Callable[..., Any]:
    w = torch.ones(2)
    f = compile(lambda w, arguments: (refused.function(*arguments), w * 2)[1])
    return lambda *arguments: f(w, arguments)


def _handled(compile: Compiler, refused: Refused) -> Callable[..., Any]:
    """In a ``try`` inside of what is compiled, which goes on behind the error."""

    @compile
    def f(w: torch.Tensor, arguments: Any) -> Any:
        told = None
        try:
            refused.function(*arguments)
        except Exception as error:
            told = error
            w = w * 3
        return w * 2, told

    def run(*arguments: Any) -> None:
        w, told = f(torch.ones(2), arguments)
        run.state = (w.tolist(), _words(told))  # type: ignore[attr-defined]

    return run


def _in_step(compile: Compiler, refused: Refused) -> Callable[..., Any]:
    """Between a backward pass and the update."""
    return _step_with(compile, lambda w, arguments: refused.function(*arguments))


def _handled_in_step(compile: Compiler, refused: Refused) -> Callable[..., Any]:
    """The same in a ``try``."""

    def attempt(w: torch.Tensor, arguments: Any) -> None:
        try:
            refused.function(*arguments)
        except Exception:
            w.grad.mul_(2)  # type: ignore[union-attr]

    return _step_with(compile, attempt)


def _step_with(compile: Compiler, act: Callable[..., Any]) -> Callable[..., Any]:
    w = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([w], 0.1)

    @compile
    def step(*arguments: Any) -> Any:
        loss = (w * w).sum()
        loss.backward()
        act(w, arguments)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return _with_state(step, w)


def _in_order_two(compile: Compiler, refused: Refused) -> Callable[..., Any]:
    w = torch.ones(2, requires_grad=True)

    @compile
    def step(*arguments: Any) -> Any:
        (grad,) = torch.autograd.grad((w * w * w).sum(), w, create_graph=True)
        refused.function(*arguments)
        (grad * grad).sum().backward()

    return _with_state(step, w)


def _in_backward(compile: Compiler, refused: Refused) -> Callable[..., Any]:
    """Called by the backward of an autograd.Function; what it gives is not used."""
    w = torch.ones(2, requires_grad=True)

    class Calls(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, w: torch.Tensor, spec: Any, *flat: Any) -> torch.Tensor:
            ctx.spec, ctx.flat = spec, flat
            return w * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            refused.function(*pytree.tree_unflatten(list(ctx.flat), ctx.spec))
            return (grad * 3, None, *(None for _ in ctx.flat))

    f = compile(lambda w, spec, *flat: Calls.apply(w.sin(), spec, *flat).sum())

    def run(*arguments: Any) -> None:
        flat, spec = pytree.tree_flatten(arguments)
        f(w, spec, *flat).backward()

    return _with_state(run, w)


def _with_state(function: Callable[..., Any], w: torch.Tensor) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        finally:
            run.state = (w.tolist(), None if w.grad is None else w.grad.tolist())  # type: ignore[attr-defined]

    return run


_WAYS: dict[str, Callable[[Compiler, Refused], Callable[..., Any]]] = {
    "forward": _alone,
    "unused": _unused,
    "handled": _handled,
    "handled in step": _handled_in_step,
    "step": _in_step,
    "order two": _in_order_two,
    "backward": _in_backward,
}
_CHEAP = ("forward", "unused", "handled")  # for what does not hang on values, and is met while tracing
WAYS = tuple(_WAYS)


def judge(name: str, number: int, refused: Refused, compiler: Compiler, order: int) -> list[Verdict]:
    """Compare one call with eager, in each way."""
    verdicts = []
    for way in _WAYS if refused.good is not None else _CHEAP:
        found = []
        for runs in refused.runs():
            eager = _outcomes(way, refused, runs, EAGER)
            with time_limit():
                found += _differences(eager, _outcomes(way, refused, runs, compiler))
        verdicts.append(Verdict(name, number, way, "mismatch" if found else "both raise", found[0] if found else ""))
    return verdicts


def _outcomes(way: str, refused: Refused, runs: list[tuple[Any, ...]], compiler: Compiler) -> list[str]:
    compiler.reset()
    function = _WAYS[way](compiler, refused)
    found = []
    for arguments in runs:
        torch.manual_seed(0)
        fresh = dataclasses.replace(refused, arguments=arguments).fresh()
        with warnings.catch_warnings(), compiler.backward():
            warnings.simplefilter("ignore")
            try:
                function(*fresh)
                found.append("no error")
            except Exception as error:
                found.append(_words(error))
        found[-1] += f" {getattr(function, 'state', '')}"
    return found


def _words(error: Exception | None) -> str:
    """Of what does not converge LAPACK's code was seen to differ from run to run; why was not found out."""
    return "" if error is None else re.sub(r"error code: \d+", "error code", f"{type(error).__name__}: {error}")


def _differences(eager: list[str], compiled: list[str]) -> list[str]:
    pairs = enumerate(zip(eager, compiled, strict=True))
    return [f"call {i} of {len(eager)}: {a[:160]!r}, compiled {b[:300]!r}" for i, (a, b) in pairs if a != b]
