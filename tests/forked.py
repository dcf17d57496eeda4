"""Python in processes of their own that need not import torch: forked off one that has.

    python: (words of a command line, environment, cwd) -> CompletedProcess      as ``subprocess.run([sys.executable, *words])``

Importing torch and Dynamo takes three seconds, what a test then does often less. gradc is not imported in such a process, so it
reads its variables and patches torch there; what torch reads where it is imported (``TORCH_LOGS``, ``TORCH_TRACE``) holds not.
The words may be ``-W ignore``, and then ``-c TEXT``, ``-m MODULE`` or the path of a program, and its own words.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Job:
    """What a forked process is to do, in words that JSON has."""

    words: tuple[str, ...]
    environment: dict[str, str]
    cwd: str
    out: str
    err: str


def python(
    *words: object, environment: Mapping[str, str] | None = None, cwd: pathlib.Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python; see above. ``environment`` is the whole of it, as for ``subprocess.run``."""
    given, variables = tuple(map(str, words)), dict(os.environ if environment is None else environment)
    with tempfile.TemporaryDirectory() as folder:
        out, err = pathlib.Path(folder, "out"), pathlib.Path(folder, "err")
        code = _server_does(Job(given, variables, str(cwd or pathlib.Path.cwd()), str(out), str(err)))
        return subprocess.CompletedProcess(given, code, out.read_text(), err.read_text())


def _server_does(job: Job) -> int:
    """The status with which the forked process ends. Whoever stops waiting ends all of it: the next job gets another server."""
    server = _server()
    try:
        print(json.dumps(dataclasses.asdict(job)), file=server.stdin, flush=True)
        return int(server.stdout.readline())  # type: ignore[union-attr]
    except BaseException:
        _server.cache_clear()
        os.killpg(server.pid, signal.SIGKILL)
        raise


@functools.cache
def _server() -> subprocess.Popen[str]:
    """The process that has imported torch, and waits. It ends when this one does."""
    command, root = [sys.executable, "-m", __name__], pathlib.Path(__file__).parents[1]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root, process_group=0)


def _next_job() -> Job | None:
    """In a forked process its job. In the process that forks, None, after the last one."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return Job(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None


def _settle(job: Job) -> None:
    for number, path in enumerate((os.devnull, job.out, job.err)):
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(job.environment)
    os.chdir(job.cwd)


def _do(words: Sequence[str]) -> None:
    match words:
        case ["-W", "ignore", *rest]:
            warnings.simplefilter("ignore")
            _do(rest)
        case ["-c", text, *rest]:
            sys.argv, sys.path[0] = ["-c", *rest], ""
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(text, "<string>", "exec"), vars(main))
        case ["-m", module, *rest]:
            sys.argv, sys.path[0] = [module, *rest], os.getcwd()
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [path, *rest]:
            sys.argv, sys.path[0] = [path, *rest], os.path.dirname(path)
            runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401 - for those who are forked off

    if (job := _next_job()) is not None:
        _settle(job)
        _do(job.words)
