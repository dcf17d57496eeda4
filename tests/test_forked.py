"""Python that is forked off does as one that is started."""

import os
import pathlib
import signal

import pytest

from tests import forked


def test_a_text(tmp_path: pathlib.Path) -> None:
    text = "import os, sys\nprint(sys.argv, os.environ['X'], __name__, os.getcwd())\nraise ValueError('said')"
    done = forked.python("-c", text, "word", 2, environment={**os.environ, "X": "set"}, cwd=tmp_path)
    assert done.stdout == f"['-c', 'word', '2'] set __main__ {tmp_path}\n"
    assert done.returncode == 1 and done.stderr.endswith("ValueError: said\n")


def test_torch_is_there_and_gradc_is_not() -> None:
    done = forked.python("-c", "import sys; print('torch._dynamo' in sys.modules, 'gradc' in sys.modules)")
    assert done.stdout == "True False\n"


def test_a_program_and_a_module(tmp_path: pathlib.Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    (program := tmp_path / "program.py").write_text(
        "import sys, warnings, beside\nwarnings.warn('unheard')\nprint(sys.argv[1:], beside.NAME)\n"
    )
    done = forked.python("-W", "ignore", program, "word")
    assert (done.returncode, done.stdout, done.stderr) == (0, "['word'] beside\n", "")
    done = forked.python("-m", "program", "word", cwd=tmp_path)
    assert done.stdout == "['word'] beside\n" and "unheard" in done.stderr


def test_how_it_ends() -> None:
    texts = ("import sys; sys.exit(3)", "import os; os.abort()", "import atexit; atexit.register(print, 'last')")
    done = [forked.python("-c", text) for text in texts]
    assert [each.returncode for each in done] == [3, -6, 0] and done[2].stdout == "last\n"


def test_whoever_stops_waiting_gets_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(number: int, frame: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(forked, "_server", forked.functools.cache(forked._server.__wrapped__))
    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(TimeoutError):
            forked.python("-c", "import time; time.sleep(600)")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert forked.python("-c", "print('here')").stdout == "here\n"
