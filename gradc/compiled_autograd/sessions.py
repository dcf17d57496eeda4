"""What this process has captured, apart for each setting: a backend's pieces serve no other backend.

    session_of: Setting -> Session        Session.recording_for: Walk -> Recording, or None: not captured yet

Everything here is bounded: what was kept first goes first.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any

import torch

from gradc import executor, native
from gradc.backends import Lower
from gradc.capture.recording import Boundary, EngineState
from gradc.compiled_autograd.compilers import lower_with
from gradc.compiled_autograd.settings import Setting
from gradc.errors import UnsupportedError
from gradc.policy.credit import CREDIT
from gradc.replay.spec import RecordingSpec
from gradc.symbolic.generalise import General

if TYPE_CHECKING:
    from gradc._C import Recording, Walk

MAX_SESSIONS = 16
MAX_RECORDINGS = 64
MAX_MISSES = 32  # in a row
MAX_MISSES_AFTER_REFUSALS = 4  # in a row, of a structure for whose sizes no trace was of use
MAX_POINTS = 4  # sizes of one structure that are kept
MAX_REFUSALS = 3
_MOST_REST = 1024  # passes that are not even looked at
_NOT_WORTH = "capture that does not pay"


@dataclasses.dataclass(frozen=True)
class Structure:
    """What two graphs have in common that differ in sizes alone: the walk's key, and the order of its nodes."""

    key: bytes
    order: tuple[int, ...]

    @classmethod
    def of(cls, walk: Walk) -> Structure:
        return cls(walk.key, tuple(walk.order))


@dataclasses.dataclass(frozen=True)
class Met:
    """What captures of one structure left behind: the numbers of the last ones, and what boundaries returned in the very last.

    ``num_refusals`` counts the traces for all sizes that were of no use.
    """

    points: tuple[tuple[int, ...], ...]
    boundaries: tuple[Boundary, ...]
    num_refusals: int = 0


class Bounded(dict[Any, Any]):
    """A dict of at most ``capacity`` entries: the one that was set first goes."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self._lock = threading.RLock()  # what is dropped may run a backward pass as it dies

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set, as the newest entry."""
        with self._lock:
            self.pop(key, None)
            super().__setitem__(key, value)
            if len(self) > self.capacity:
                self.pop(next(iter(self)))


class Session:
    """What has been captured for one setting.

    ``met`` maps a Structure to what is known of its sizes, ``generals`` a recording to the trace for all sizes it is of, and
    ``seconds`` a recording to what its capture took.
    """

    def __init__(self, setting: Setting) -> None:
        self.recordings = native.extension.Recordings(MAX_RECORDINGS)
        self.lower = lower_with(setting.compiler)
        self.dynamic = setting.dynamic
        self.met = Bounded(MAX_RECORDINGS)
        self.generals = Bounded(MAX_RECORDINGS)
        self.seconds = Bounded(MAX_RECORDINGS)
        self._new: list[Recording] = []
        self._num_misses, self._rest, self._next_rest = 0, 0, 1
        self._num_refills = CREDIT.num_refills

    def rest(self, setting: Setting) -> None:
        """Captures have not paid lately, and looking takes time, too: twice as many passes are left out after each that missed.

        Raises:
            UnsupportedError: if this pass is one of them.
        """
        if self._num_refills != CREDIT.num_refills:
            self._rest, self._next_rest, self._num_refills = 0, 1, CREDIT.num_refills
        if self._rest and setting.is_limited:
            self._rest -= 1
            raise UnsupportedError(_NOT_WORTH)

    def recording_for(self, walk: Walk, setting: Setting) -> Recording | None:
        """The recording that serves the walked graph, as it is or proven for its sizes; None if it must be captured first.

        Raises:
            UnsupportedError: if it cannot be captured, or capturing has not paid.
        """
        recording = self.recordings.find(walk) or self._prove(walk)
        if recording is None:
            self._num_misses += 1
            if not CREDIT.allows() and setting.is_limited:
                self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, _MOST_REST)
                raise UnsupportedError(_NOT_WORTH)
            if self._num_misses > MAX_MISSES:
                raise UnsupportedError("graph that differs at every step")
            if self._num_misses > MAX_MISSES_AFTER_REFUSALS and self._is_refused(walk):
                raise UnsupportedError("sizes that differ at every step")
        elif recording.is_uncapturable:
            raise UnsupportedError("graph that cannot be captured")
        else:
            self._num_misses, self._next_rest = 0, 1
            if not CREDIT.is_full:
                CREDIT.earn(self.seconds.get(recording, 0.0))
        return recording

    def _is_refused(self, walk: Walk) -> bool:
        """Whether each of its sizes has to be captured on its own."""
        known = self.met_of(walk)
        return known is not None and known.num_refusals >= MAX_REFUSALS

    @torch.compiler.disable  # what tracing calls is nothing for Dynamo to look at
    def _prove(self, walk: Walk) -> Recording | None:
        """The recording that serves these sizes too, though they are new; None if there is none."""
        recording = self.recordings.find(walk, False)
        general: General | None = self.generals.get(recording)
        if recording is None or general is None:
            return None
        values = recording.symbol_values(walk)
        if not general.is_proven(walk, values):
            return None
        self.recordings.prove(recording, values)
        return recording

    def lower_for(self, walk: Walk) -> Lower:
        """What makes the pieces of this pass run. Under ``create_graph`` they run above autograd, where no backend does."""
        return executor.lower_dispatched if walk.create_graph else self.lower

    def keep(self, walk: Walk, spec: RecordingSpec, offsets: list[int]) -> Recording:
        """Keep, and return, the recording that ``spec`` describes. ``offsets``: of the walked tensors before the capture."""
        recording = native.extension.Recording(walk, spec, offsets if spec.has_offsets else [])
        self.recordings.keep(recording)
        self._new.append(recording)
        return recording

    def pay(self, seconds: float) -> None:
        """For a capture, of which what was kept since the last one came."""
        CREDIT.pay(seconds)
        while self._new:
            self.seconds[self._new.pop()] = seconds

    def keep_general(self, walk: Walk, general: General, spec: RecordingSpec, values: list[int], offsets: list[int]) -> None:
        """Keep a recording for all sizes, proven for those at hand."""
        recording = self.keep(walk, spec, offsets)
        self.recordings.prove(recording, values)
        self.generals[recording] = general

    def keep_uncapturable(self, walk: Walk) -> None:
        """Remember that torch's engine has to run such graphs."""
        self.recordings.keep(native.extension.Recording(walk, None, []))

    def met_of(self, walk: Walk) -> Met | None:
        """What is known of the sizes of this structure."""
        return self.met.get(Structure.of(walk))

    def note_sizes(self, walk: Walk, boundaries: tuple[Boundary, ...]) -> None:
        """Remember the sizes of this structure, for the next time they differ."""
        known = self.met_of(walk)
        points = (*(known.points if known else ()), tuple(walk.numbers))[-MAX_POINTS:]
        returned = tuple(dataclasses.replace(boundary, after=EngineState()) for boundary in boundaries)  # the rest is large
        self.met[Structure.of(walk)] = Met(points, returned, known.num_refusals if known else 0)

    def note_refusal(self, walk: Walk) -> None:
        """Remember that a trace for all sizes was of no use."""
        known = self.met_of(walk)
        if known is not None:
            self.met[Structure.of(walk)] = dataclasses.replace(known, num_refusals=known.num_refusals + 1)


_sessions = Bounded(MAX_SESSIONS)


def session_of(setting: Setting) -> Session:
    """The session of all settings with the same wishes."""
    session: Session | None = _sessions.get(setting.key)
    if session is None:
        session = _sessions[setting.key] = Session(setting)
    return session


def forget() -> None:
    """Forget everything captured."""
    _sessions.clear()
    CREDIT.refill()
