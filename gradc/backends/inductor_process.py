"""Compile Programs by Inductor while the training goes on: in another process, one at a time.

    ask(job, is_wanted, done): done is called with the Answer, in a thread of ours        is_busy() -> bool        forget()

A process and not a thread, since much of Inductor is Python, which would hold up the interpreter for seconds. It is started for
the first Program, and ended when there has been none for a while, when this process ends, or when it takes too long. See Note
[The faster backend].
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import dataclasses
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from gradc.backends.inductor_worker import Answer, Job, Refused, receive, send

MOST_WAITING = 64
_MOST_SECONDS = 600.0  # for one Program
_IDLE_SECONDS = 20.0
_LOWER = 10  # than the training's priority: a tenth of what that gets, where there is one core for both
_COMMAND = "from gradc.backends.inductor_worker import main; main()"


@dataclasses.dataclass(frozen=True)
class _Asked:
    job: Callable[[], Job]
    is_wanted: Callable[[], bool]
    done: Callable[[Answer], None]


class Compiler:
    """The queue, the thread that empties it, and the process that the thread talks to."""

    def __init__(self) -> None:
        self._waiting: collections.deque[_Asked] = collections.deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_working = self._is_closed = False

    def ask(self, job: Callable[[], Job], is_wanted: Callable[[], bool], done: Callable[[Answer], None]) -> bool:
        """See the module's docstring. False, and nothing is done, if too many wait already."""
        with self._changed:
            if self._is_closed or len(self._waiting) >= MOST_WAITING:
                return False
            self._waiting.append(_Asked(job, is_wanted, done))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="gradc-inductor", daemon=True)
                self._thread.start()
            self._changed.notify()
        return True

    @property
    def is_busy(self) -> bool:
        return self._is_working or bool(self._waiting)

    def forget(self) -> None:
        """What waits; what is being compiled is compiled to the end."""
        self._waiting.clear()

    def close(self) -> None:
        """End the process now, and answer nothing any more."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
        self._end_process()

    def _work(self) -> None:
        while (asked := self._next()) is not None:
            try:
                if asked.is_wanted():
                    self._serve(asked)
            finally:
                self._is_working = False

    def _next(self) -> _Asked | None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting, timeout=_IDLE_SECONDS):
                self._thread = None
                self._end_process()
                return None
            self._is_working = True
            return self._waiting.popleft()

    def _serve(self, asked: _Asked) -> None:
        try:
            answer = self._answer(asked.job())
        except Exception as error:  # arguments that cannot be pickled, no process to be had
            answer = Answer(Refused("program that cannot be sent to another process", f"{type(error).__name__}: {error}"), 0.0)
        if not self._is_closed:
            asked.done(answer)

    def _answer(self, job: Job) -> Answer:
        try:
            process = self._started()
            assert process.stdin is not None and process.stdout is not None
            send(process.stdin, job)
            if not _is_readable(process.stdout, _MOST_SECONDS):
                return self._given_up("Inductor takes too long")
            answer: Answer = receive(process.stdout)
        except (EOFError, BrokenPipeError):
            return self._given_up("the process that compiles has ended")
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        with self._changed:
            if self._is_closed:
                raise EOFError
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _COMMAND],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=_environment(),
                    start_new_session=True,  # Ctrl-C is not for it; and its compilers end with it
                )
                _give_way(self._process.pid)
            return self._process

    def _given_up(self, kind: str) -> Answer:
        self._end_process()
        return Answer(Refused(kind), 0.0)

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _give_way(process: int) -> None:
    """Lower the priority of what was started. Where Linux groups processes by session, it counts within one alone."""
    with contextlib.suppress(OSError):
        priority = min(os.getpriority(os.PRIO_PROCESS, 0) + _LOWER, 19)
        os.setpriority(os.PRIO_PROCESS, process, priority)
        pathlib.Path(f"/proc/{process}/autogroup").write_text(str(priority))


def _is_readable(stream: Any, seconds: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return bool(selector.select(seconds))


def _environment() -> dict[str, str]:
    """This process's, with its ``sys.path``, no logs, and no accelerator."""
    quiet = {name: value for name, value in os.environ.items() if name not in ("GRADC_LOGS", "TORCH_LOGS", "TORCH_TRACE")}
    return quiet | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "CUDA_VISIBLE_DEVICES": ""}


_compiler = Compiler()


def ask(job: Callable[[], Job], is_wanted: Callable[[], bool], done: Callable[[Answer], None]) -> bool:
    """Have ``job()``'s Program compiled, if ``is_wanted()`` still when its turn comes."""
    return _compiler.ask(job, is_wanted, done)


def is_busy() -> bool:
    """True while something is compiled, or waits for it."""
    return _compiler.is_busy


def forget() -> None:
    """What waits to be compiled."""
    _compiler.forget()


def _begin_anew() -> None:
    """In a process that was forked off: the other's thread is not here, and its process is not ours."""
    global _compiler
    _compiler = Compiler()


atexit.register(lambda: _compiler.close())
os.register_at_fork(after_in_child=_begin_anew)
