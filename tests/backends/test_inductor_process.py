"""The process that compiles in the background, and others in its place: whatever it does, the training goes on."""

import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest

from gradc.backends import inductor_process
from gradc.backends.inductor_worker import Answer, Job, Refused

JOB = Job(b"", (), 1)
START = "import sys; from gradc.backends.inductor_worker import *; jobs, answers = sys.stdin.buffer, sys.stdout.buffer\n"
ECHO = START + "while True: send(answers, Answer(Refused('heard', str(receive(jobs).num_threads)), 0.5))"
DEAF = START + "receive(jobs)"
SLOW = START + "time.sleep(60)"


@pytest.fixture
def compiler():
    made = inductor_process.Compiler()
    yield made
    made.close()


@pytest.fixture
def command(monkeypatch):
    def use(text, **settings):
        monkeypatch.setattr(inductor_process, "_COMMAND", text)
        for name, value in settings.items():
            monkeypatch.setattr(inductor_process, name, value)

    return use


def answer_of(compiler, job=lambda: JOB):
    answers, is_there = [], threading.Event()

    def done(answer):
        answers.append(answer)
        is_there.set()

    assert compiler.ask(job, lambda: True, done)
    assert is_there.wait(60)
    return answers[0]


def test_it_answers_again_and_again_and_is_busy_meanwhile(compiler, command):
    command(ECHO)
    assert not compiler.is_busy
    for number in (3, 4):
        assert answer_of(compiler, lambda: Job(b"", (), number)) == Answer(Refused("heard", str(number)), 0.5)
    assert len({compiler._process.pid}) == 1


def test_a_process_that_dies_is_an_answer_and_the_next_program_has_another(compiler, command):
    command(DEAF)
    assert answer_of(compiler).result == Refused("the process that compiles has ended")
    command(ECHO)
    assert answer_of(compiler).result == Refused("heard", "1")


def test_a_process_that_takes_too_long_is_ended(compiler, command):
    command(SLOW, _MOST_SECONDS=0.2)
    assert answer_of(compiler).result == Refused("Inductor takes too long")
    assert compiler._process is None


def test_a_process_that_cannot_be_started(compiler, command, monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    assert answer_of(compiler).result.kind == "program that cannot be sent to another process"


def test_what_cannot_be_sent(compiler, command):
    def job():
        raise TypeError("no such")

    command(ECHO)
    expected = Refused("program that cannot be sent to another process", "TypeError: no such")
    assert answer_of(compiler, job).result == expected


def test_what_nobody_wants_any_more_is_not_compiled(compiler, command):
    command(ECHO)
    asked = []
    compiler.ask(lambda: asked.append(JOB), lambda: False, asked.append)
    answer_of(compiler)
    assert asked == []


def test_no_more_wait_than_may(compiler, command):
    command(SLOW, MOST_WAITING=2)
    results = [compiler.ask(lambda: JOB, lambda: True, lambda answer: None) for _ in range(4)]
    assert results[:2] == [True, True] and results[3] is False
    compiler.forget()
    assert compiler.ask(lambda: JOB, lambda: True, lambda answer: None)


def test_an_idle_process_is_ended_and_started_again(compiler, command):
    command(ECHO, _IDLE_SECONDS=0.1)
    answer_of(compiler)
    first = compiler._process
    assert first is None or first.wait(20) is not None
    assert answer_of(compiler).result == Refused("heard", "1")


def test_a_process_that_was_forked_off_has_a_queue_of_its_own():
    ours = inductor_process._compiler
    if (child := os.fork()) == 0:
        os._exit(0 if inductor_process._compiler is not ours else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_the_end_of_the_program_waits_for_nothing_and_prints_nothing():
    """While something is compiled, and the process that does so ends with it."""
    program = f"""
import os, time
from gradc.backends import inductor_process
from gradc.backends.inductor_worker import Job
inductor_process._COMMAND = {SLOW!r}
inductor_process.ask(lambda: Job(b"", (), 1), lambda: True, print)
while inductor_process._compiler._process is None: time.sleep(0.01)
print(inductor_process._compiler._process.pid)
"""
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert time.monotonic() - start < 40
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_the_process_gives_way_to_the_training_also_where_priorities_count_within_a_session(compiler, command):
    """Linux groups processes by session (autogroup): inside of its own one, a low priority alone gives way to nobody."""
    command(ECHO)
    answer_of(compiler)
    priority = min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)
    assert os.getpriority(os.PRIO_PROCESS, compiler._process.pid) == priority
    group = pathlib.Path(f"/proc/{compiler._process.pid}/autogroup")
    assert not group.exists() or group.read_text().split()[-2:] == ["nice", str(priority)]
