"""The process that compiles in the background: Programs come by its standard input one by one, and answers go by its output.

    main() -> None          inductor_process.py starts it, at a low priority, and ends it

It ends when the process that started it does, however that was, and prints nothing.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import struct
import threading
import time
from typing import IO, Any

from gradc.errors import UnsupportedError
from gradc.executor.core.candidates import CandidateSpec, Input

_LENGTH = struct.Struct("!Q")


@dataclasses.dataclass(frozen=True)
class Job:
    """``program``: as ``gradc.ir.pickled`` has it. ``num_threads``: of torch's, that it is to be compiled for."""

    program: bytes
    inputs: tuple[Input, ...]
    num_threads: int


@dataclasses.dataclass(frozen=True)
class Refused:
    """Why there is no code: the reason in a few words, and what was met."""

    kind: str
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class Answer:
    """``seconds``: that it took."""

    result: CandidateSpec | Refused
    seconds: float


def send(stream: IO[bytes], value: Any) -> None:
    data = pickle.dumps(value)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """What the other process sent.

    Raises:
        EOFError: if it has ended.
    """
    (length,) = _LENGTH.unpack(_read(stream, _LENGTH.size))
    return pickle.loads(_read(stream, length))


def _read(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def main() -> None:
    """Answer until the input ends."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    silent = os.open(os.devnull, os.O_RDWR)
    for own in (0, 1, 2):  # compilers print
        os.dup2(silent, own)
    while True:
        try:
            job = receive(jobs)
        except EOFError:
            return
        send(answers, _answer(job))


def _answer(job: Job) -> Answer:
    from gradc.backends.ahead_of_time import compile_program
    from gradc.ir.pickled import unpickled

    start = time.perf_counter()
    result: CandidateSpec | Refused
    try:
        result = compile_program(unpickled(job.program), job.inputs, job.num_threads)
    except UnsupportedError as error:
        result = Refused(error.kind, error.detail)
    except Exception as error:  # whatever a compiler of several hundred thousand lines raises
        lines = str(error).strip().splitlines() or [""]
        result = Refused("Inductor cannot compile it", f"{type(error).__name__}: {lines[0]}")
    return Answer(result, time.perf_counter() - start)


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(os.getpgrp(), signal.SIGKILL)  # with the C++ compiler that may run
