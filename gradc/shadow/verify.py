"""Shadow mode: calls of what gradc compiled are run beside in eager, on copies, and compared bit for bit.

    verified: (compiled, target, how many calls) -> compiled, verified

The first calls are verified, and as many again whenever gradc has compiled something anew: for new sizes, another mode, a
backward in a new state. For such a call

    explore, copy    reachable_state.py, copies.py     what the call can come to, and copies of what it may change
    run eagerly      eagerly.py              the user's own function, on the copies; then all is as it was
    run compiled                             as ever
    compare          differences.py          results, what was written and where, generators of random numbers, modes
    watch            gradients.py            backward, when it runs

On a difference the call's result is eager's, the difference is told and counted, and the callable runs eagerly from then on.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradc.ambient import unsupported_mode
from gradc.config import config
from gradc.errors import DifferenceWarning, FallbackError
from gradc.journal import count, fallback, num_compiled
from gradc.shadow import process
from gradc.shadow.arrivals import Edge
from gradc.shadow.differences import differences, irreproducible, kept_values
from gradc.shadow.eagerly import Outcome, Run, outcome_of
from gradc.shadow.gradients import Shadow, watch
from gradc.shadow.live_graph import Input, Output, is_of_a_leaf, lead_to_one_another
from gradc.shadow.reachable_state import UnverifiableError
from gradc.torch_private.autograd import are_saved_tensors_hooked, is_inside_backward, next_sequence_nr
from gradc.torch_private.reexecution import gradient_edge, is_inside_compiled_code, number_of_a_pass

MAX_TOLD = 5
PATIENCE = 60.0  # seconds for which a thread waits until another one has verified its call
_one_at_a_time = threading.RLock()


class _Local(threading.local):
    is_verifying = False


_local = _Local()


def verified(compiled: Callable[..., Any], target: Any, num_calls: int, fullgraph: bool = False) -> Callable[..., Any]:
    """``compiled``, which was made of ``target``, verified."""
    return _Verifier(compiled, target, num_calls, fullgraph)


@dataclasses.dataclass
class _Verifier:
    """``left``: how many calls are still to be verified. ``difference``: what was found, and then it is for eager."""

    compiled: Callable[..., Any]
    target: Any
    num_calls: int
    fullgraph: bool
    left: int = 0
    num_compiled: int = -1
    difference: str = ""

    @property
    def name(self) -> str:
        return getattr(self.target, "__qualname__", None) or type(self.target).__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.difference:
            fallback("differed from eager", f"{self.name}: {self.difference}", _place(self.target), fullgraph=self.fullgraph)
            return self.target(*args, **kwargs)
        if self.num_compiled != num_compiled():
            self.num_compiled, self.left = num_compiled(), self.num_calls
        if self.left <= 0 or _local.is_verifying:
            return self.compiled(*args, **kwargs)
        self.left -= 1
        return self._call_verified(args, kwargs)

    def _call_verified(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not _one_at_a_time.acquire(timeout=PATIENCE):
            _leave_out("another thread is busy")
            return self.compiled(*args, **kwargs)
        _local.is_verifying = True
        try:
            return self._compared(args, kwargs)
        finally:
            self.num_compiled = num_compiled()
            _local.is_verifying = False
            _one_at_a_time.release()

    def _compared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            _refuse()
            run = Run(self.target, args, kwargs)
            edges = _edges_of(run)
            eager = _eagerly(run, [pair.live for pair in edges.values()])
        except UnverifiableError as error:
            _leave_out(str(error))
            return self.compiled(*args, **kwargs)
        first_number = next_sequence_nr()
        compiled = outcome_of(self.compiled, args, kwargs)
        if isinstance(compiled.error, FallbackError) or (self.fullgraph and compiled.error and not eager.error):
            raise compiled.error  # asked for
        try:
            found = list(self._differences(run, eager, compiled))
        except UnverifiableError as error:
            _leave_out(str(error))
            return compiled.unwrap()
        count("verified", "calls")
        run.copies.release_hooks()
        if found:
            return self._give_up(found, run, compiled, edges, args, kwargs)
        if compiled.error is None:
            self._watch(run, edges, first_number)
        return compiled.unwrap()

    def _differences(self, run: Run, eager: Outcome, compiled: Outcome) -> Any:
        if (eager.error is None) != (compiled.error is None) or not isinstance(compiled.error, type(eager.error)):
            yield "", f"it {_ending(compiled)}, in eager it {_ending(eager)}"
        elif eager.error is None:
            yield from differences(run.values_of_eager, run.values(compiled), run.copies)
        now = process.settings()
        for name, value in run.settings_of_eager.items():
            if name in now and not process.is_same(now[name], value):
                yield name, f"{name}: another state than eager's"

    def _watch(self, run: Run, edges: dict[int, _Edges], first_number: int) -> None:
        inputs = [
            Input(name, edges[id(tensor)].live, edges[id(tensor)].eager)
            for name, tensor in run.named_tensors()
            if id(tensor) in edges
        ]
        known = {given.edge for given in inputs}
        outputs = [
            Output((mine.grad_fn, mine.output_nr), theirs)
            for mine, theirs in run.tensors_that_came_out()
            if (mine.grad_fn, mine.output_nr) not in known
        ]
        known |= {output.edge for output in outputs}
        outputs += [
            Output(edge, theirs, _has_been_written(mine))
            for mine, theirs in run.what_views_were_taken_of()
            if (edge := gradient_edge(mine)) not in known
        ]
        run.release_results()
        if config.backward_pass_autocast != "ambient":
            _leave_out("a backward under another autocast than eager's")
        elif inputs and outputs:
            again = functools.partial(_again, run)
            watch(outputs, inputs, first_number, Shadow(process.settings, again, self._judge_backward, _leave_out))

    def _judge_backward(self, found: list[str]) -> None:
        self.num_compiled = num_compiled()
        count("verified", "backwards")
        if found and not self.difference:
            self._tell([("", text) for text in found], "The gradients of this call are gradc's; it runs eagerly from now on.")

    def _give_up(self, found: list[tuple[str, str]], run: Run, compiled: Outcome, edges: Any, args: Any, kwargs: Any) -> Any:
        """Eager's result, where what the compiled call has done can be undone."""
        if _have_other_histories(run, edges):
            self._tell(
                found, "This call's result is gradc's, for it wrote into tensors with a history; it runs eagerly from now on."
            )
            return compiled.unwrap()
        kept = kept_values(run.values_of_compiled, [name for name, _ in found])
        run.undo()
        again = Run(self.target, args, kwargs)
        again.eagerly()
        again.copies.release_hooks()
        noise = irreproducible(run.values_of_eager, again.values_of_eager)
        left = [(name, text) for name, text in found if name not in noise]
        outcome = outcome_of(self.target, args, kwargs)
        if not left:
            _leave_out("eager itself gives another result when it runs again")
        elif _is_same(compiled, kept, outcome, run.values(outcome), dict(left)):
            _leave_out("copies do otherwise than what they were made of")
        else:
            self._tell(left, "This call's result is eager's; it runs eagerly from now on.")
        return outcome.unwrap()

    def _tell(self, found: list[tuple[str, str]], consequence: str) -> None:
        self.difference = found[0][1]
        count("verified", "differences")
        more = [f"  and {len(found) - MAX_TOLD} more"] if len(found) > MAX_TOLD else []
        lines = [f"gradc: {self.name} does not do what eager does.", *(f"  {text}" for _, text in found[:MAX_TOLD]), *more]
        lines += [f"  at {place}"] if (place := _place(self.target)) else []
        warnings.warn("\n".join([*lines, f"  {consequence}"]), DifferenceWarning, stacklevel=2)


def _again(run: Run, *arguments: Any) -> Any:
    """``run.again`` while no other thread verifies anything. Does not wait: the other may need the thread that this runs in."""
    if not _one_at_a_time.acquire(blocking=False):
        raise UnverifiableError("another thread is busy")
    try:
        return run.again(*arguments)
    finally:
        _one_at_a_time.release()


def _has_been_written(tensor: Tensor) -> Callable[[], bool]:
    """Asks whether anybody has written into the tensor since, through whichever view."""
    handle, version = tensor.detach(), tensor._version
    return lambda: handle._version != version


def _leave_out(reason: str) -> None:
    count("verified", f"left out: {reason}")


def _refuse() -> None:
    if reason := unsupported_mode():
        raise UnverifiableError(reason)
    if are_saved_tensors_hooked():
        raise UnverifiableError("saved-tensors hooks")
    if is_inside_backward():
        raise UnverifiableError("inside a backward pass")
    if is_inside_compiled_code():
        raise UnverifiableError("inside compiled code")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise UnverifiableError("torch.distributed")


def _is_same(compiled: Outcome, kept: dict[str, Any], eager: Outcome, values: dict[str, Any], names: dict[str, str]) -> bool:
    """Whether eager on what really came in, and not on copies, does as the compiled call did."""
    if compiled.error or eager.error:
        return type(compiled.error) is type(eager.error)
    return kept.keys() >= names.keys() and not irreproducible(kept, values, kept)


def _eagerly(run: Run, edges: list[Edge]) -> Outcome:
    if not lead_to_one_another(edges):
        return run.eagerly()
    number = number_of_a_pass()
    outcome = run.eagerly()
    if number_of_a_pass() != number + 1:
        raise UnverifiableError("a backward inside, through what arguments were computed from")
    return outcome


@dataclasses.dataclass(frozen=True)
class _Edges:
    """Where the gradient of a tensor that came in goes to, and that of its copy."""

    live: Edge
    eager: Edge


def _edges_of(run: Run) -> dict[int, _Edges]:
    """Asked for before the call, which may have a tensor require no gradient any more."""
    if torch.is_inference_mode_enabled():
        return {}
    return {id(tensor): _Edges(gradient_edge(tensor), gradient_edge(leaf)) for tensor, leaf in run.differentiable()}


def _have_other_histories(run: Run, edges: dict[int, _Edges]) -> bool:
    """Whether something that came in is computed otherwise now, which cannot be undone."""
    return any(_has_other_history(tensor, edges[id(tensor)].live) for tensor, _ in run.differentiable() if id(tensor) in edges)


def _has_other_history(tensor: Tensor, edge: Edge) -> bool:
    return gradient_edge(tensor) != edge if tensor.requires_grad else not is_of_a_leaf(edge)


def _ending(outcome: Outcome) -> str:
    if outcome.error is None:
        return "returns"
    return f"raises {type(outcome.error).__name__}: {outcome.error}".split("\n")[0][:200]


def _place(target: Any) -> str:
    function = type(target).forward if isinstance(target, torch.nn.Module) else target
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"File: {code.co_filename}:{code.co_firstlineno} in {code.co_name}" if code is not None else ""
