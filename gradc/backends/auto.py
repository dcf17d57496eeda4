"""Backend "auto" where other bits than eager's are allowed: each Program is replayed at once, and compiled meanwhile.

    lower: Program -> a plan that chooses        choices() -> what was chosen, with both times        is_settled() -> bool

A Program that is called often is sent to the process that compiles (inductor_process.py). When its code is there, some of the
program's own calls go by the code and some by the plan's steps, in turn; what took less time runs from then on. Inputs and
outputs are the Program's either way. See Note [The faster backend].
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
from typing import Any

import torch

from gradc import native
from gradc.backends import inductor_process, replay
from gradc.backends.inductor_worker import Answer, Job, Refused
from gradc.executor import Runner, is_plan
from gradc.executor.core.candidates import Input, input_of, with_constants
from gradc.ir.pickled import pickled
from gradc.ir.program import Program
from gradc.journal import count, log, note_compiled, note_offer, reason

NUM_CALLS = 16  # before a Program is worth compiling; a trial of compiled against eager takes more (policy/profitability.py)
NUM_TRIED = 20  # runs of each
CALLS_OF_A_TRIAL = 2 * NUM_TRIED + 8  # with those that are not counted
_MARGIN = 1.02  # that the code must be faster by
_KEPT = 512
_GROUP = "auto"


class Way(enum.Enum):
    """What runs a Program."""

    REPLAY = "replay"
    INDUCTOR = "inductor"


@dataclasses.dataclass(frozen=True)
class Chosen:
    """What runs one Program, and why.

    Attributes:
        program: its name: "forward", or "backward_0" for that of a region's first segment.
        where: the user's line that it begins at, or "".
        way: what runs it.
        replay: seconds of a run by eager's kernels; the median. None where nothing was timed.
        inductor: the same by Inductor's code.
        compile_seconds: that Inductor took, in its own process.
        why: where nothing was timed, the reason; or what the code raised later.
    """

    program: str
    where: str
    way: Way
    replay: float | None = None
    inductor: float | None = None
    compile_seconds: float | None = None
    why: str = ""

    def __str__(self) -> str:
        ways = {Way.REPLAY: "is replayed", Way.INDUCTOR: "runs Inductor's code"}
        return f"{self.program} {ways[self.way]}: {self._reason()}"

    def _reason(self) -> str:
        if self.replay is None or self.inductor is None:
            return self.why
        times = f"{1e6 * self.replay:.0f} us replayed, {1e6 * self.inductor:.0f} us by Inductor's code"
        return f"{times}; {self.why}" if self.why else times


_choices: collections.deque[Chosen] = collections.deque(maxlen=_KEPT)


def choices() -> tuple[Chosen, ...]:
    """What was chosen since ``gradc.reset()``, oldest first; of the last 512 Programs."""
    return tuple(_choices)


def is_busy() -> bool:
    """True while something is compiled, or waits for it."""
    return inductor_process.is_busy()


def forget() -> None:
    """What was chosen, and what waits to be compiled. Plans keep what they have."""
    _choices.clear()
    inductor_process.forget()


def lower(program: Program) -> Runner:
    """See the module's docstring. What is no native plan, or not for the CPU alone, is replayed as ever."""
    run = replay.lower(program)
    if not is_plan(run) or not _may_be_compiled(program):
        return run
    choice = native.extension.Choice(NUM_CALLS, NUM_TRIED, _Contestant(program).ask)
    run.let_choose(choice)  # type: ignore[attr-defined]
    return run


def _may_be_compiled(program: Program) -> bool:
    metas = [slot.meta for slot in program.slots if slot.meta is not None]
    return bool(program.instructions) and all(meta.device.type == "cpu" for meta in metas)


class _Contestant:
    """A Program on its way: asked for once it is called often, offered once it is compiled, chosen once both are timed."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._where = next((call.where for call in program.instructions if call.where), "")
        self._compile_seconds: float | None = None

    @torch.compiler.disable  # of these three, called in the midst of a step, Dynamo would look at each function: 10 ms
    def ask(self, choice: Any, inputs: list[Any]) -> None:
        """Have it compiled for these inputs. Called by a run, so nothing is done here that takes time."""
        if not all(map(_is_ordinary, inputs)):
            self._give_up(Refused("input that is no plain tensor"))
            return
        layouts, num_threads = tuple(map(input_of, inputs)), torch.get_num_threads()
        job = functools.partial(_job, self._program, layouts, num_threads)
        done = functools.partial(self._done, choice)
        if not inductor_process.ask(job, lambda: choice.is_wanted, done):
            self._give_up(Refused("too many programs wait to be compiled"))

    def _done(self, choice: Any, answer: Answer) -> None:
        self._compile_seconds = answer.seconds
        if isinstance(answer.result, Refused):
            self._give_up(answer.result)
            return
        try:
            candidate = native.extension.Candidate(with_constants(answer.result, self._program))
        except RuntimeError as error:
            self._give_up(Refused("code that cannot be loaded", str(error).strip().splitlines()[0]))
            return
        count(_GROUP, "programs compiled")
        _tell_others()
        choice.offer(candidate, self._choose, self._failed)

    @torch.compiler.disable
    def _choose(self, replay: float, inductor: float) -> bool:
        is_faster = replay > _MARGIN * inductor
        self._note(Way.INDUCTOR if is_faster else Way.REPLAY, replay, inductor)
        count(_GROUP, "programs that Inductor's code runs" if is_faster else "programs that replay runs faster")
        _tell_others()
        return is_faster

    @torch.compiler.disable
    def _failed(self, what: str) -> None:
        count(_GROUP, "programs whose code raised")
        self._note(Way.REPLAY, why=f"its code raised: {what.strip().splitlines()[0] if what.strip() else ''}")

    def _give_up(self, refused: Refused) -> None:
        count(_GROUP, f"not compiled: {refused.kind}")
        self._note(Way.REPLAY, why=reason(refused.kind, refused.detail))

    def _note(self, way: Way, replay: float | None = None, inductor: float | None = None, why: str = "") -> None:
        chosen = Chosen(self._program.name, self._where, way, replay, inductor, self._compile_seconds, why)
        _choices.append(chosen)
        log("perf", lambda: f"{chosen}" + (f"\n  at {chosen.where}" if chosen.where else ""))


def _is_ordinary(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return value is None or type(value) is int
    is_lazy = value.is_conj() or value.is_neg()
    return type(value) in _TYPES and value.layout is torch.strided and value.device.type == "cpu" and not is_lazy


_TYPES: tuple[type[Any], ...] = (torch.Tensor, torch.nn.Parameter)


def _job(program: Program, layouts: tuple[Input, ...], num_threads: int) -> Job:
    return Job(pickled(program), layouts, num_threads)


def _tell_others() -> None:
    """What is timed beside must begin anew, and what was found slower than eager may be tried again."""
    note_offer()
    note_compiled()
