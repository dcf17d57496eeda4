"""What is kept of captures: apart for each setting, and never more than the bounds say."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

import gradc
from gradc import compiled_autograd
from gradc.compiled_autograd import entry, sessions
from gradc.compiled_autograd.sessions import MAX_MISSES, MAX_POINTS, MAX_RECORDINGS, MAX_SESSIONS, Bounded, session_of
from gradc.compiled_autograd.settings import present, setting_of
from gradc.policy import credit


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    compiled_autograd.reset()
    gradc.counters.clear()
    yield
    compiled_autograd.reset()


def test_the_oldest_entry_goes() -> None:
    kept = Bounded(2)
    kept["a"], kept["b"] = 1, 2
    kept["a"] = 3  # set again: the newest
    kept["c"] = 4
    assert kept == {"a": 3, "c": 4}


def test_what_dies_may_set_another_entry() -> None:
    kept = Bounded(1)

    class Chained:
        def __del__(self) -> None:
            dict.__setitem__(kept, "from the dead", 1)

    kept["first"] = Chained()
    kept["second"] = 2
    assert "first" not in kept and "second" in kept


def test_eight_threads_keep_to_the_capacity() -> None:
    kept = Bounded(4)

    def fill(start: int) -> None:
        for number in range(1000):
            kept[start + number] = number

    threads = [threading.Thread(target=fill, args=(1000 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kept) == 4


def test_equal_settings_share_a_session_and_others_do_not() -> None:
    eager = setting_of(gradc.compile(backend="eager"), None)
    assert session_of(eager) is session_of(setting_of(gradc.compile(backend="eager"), None))
    assert session_of(eager) is not session_of(setting_of(None, None))


def test_sessions_are_bounded() -> None:
    first = session_of(setting_of(None, None))
    for _ in range(MAX_SESSIONS):
        session_of(setting_of(lambda graph: graph, None))
    assert len(sessions._sessions) == MAX_SESSIONS
    assert session_of(setting_of(None, None)) is not first


def chain(size: int, depth: int) -> torch.Tensor:
    y = torch.ones(size, requires_grad=True)
    for _ in range(depth):
        y = y.sin()
    return y.sum()


def backward(size: int, depth: int = 1) -> None:
    with compiled_autograd.enable(dynamic=False):
        chain(size, depth).backward()


def test_points_of_one_structure_are_bounded() -> None:
    for size in range(1, 3 + MAX_POINTS):
        backward(size)
    with compiled_autograd.enable(dynamic=False):
        session = session_of(present())
    (met,) = session.met.values()
    assert len(met.points) == MAX_POINTS and len(session.recordings) == 2 + MAX_POINTS <= MAX_RECORDINGS


def test_a_graph_that_differs_at_every_step_is_left_to_torch() -> None:
    for depth in range(1, MAX_MISSES + 3):
        backward(2, depth)
    assert gradc.counters["compiled_autograd"]["captures"] == MAX_MISSES
    assert dict(gradc.counters["fallbacks"]) == {"compiled autograd: graph that differs at every step": 2}
    backward(2, 3)  # one that is known is replayed, and counting starts anew
    backward(2, MAX_MISSES + 5)
    assert gradc.counters["compiled_autograd"]["captures"] == MAX_MISSES + 1


def test_reset_forgets() -> None:
    backward(3)
    assert compiled_autograd.last_graph() is not None
    compiled_autograd.reset()
    assert compiled_autograd.last_graph() is None and not sessions._sessions


@pytest.fixture
def limit() -> Iterator[None]:
    with gradc.config.patch(compile_seconds=3.0):
        yield


def test_captures_that_do_not_pay_end_and_most_passes_are_not_walked(limit: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credit, "_SECONDS", 1e-9)
    compiled_autograd.reset()
    walked = []
    monkeypatch.setattr(entry, "_walk", lambda *args, walk=entry._walk: walked.append(args) or walk(*args))
    for depth in range(1, 41):
        backward(2, depth)
    assert gradc.counters["compiled_autograd"]["captures"] == 1
    assert gradc.counters["fallbacks"]["compiled autograd: capture that does not pay"] == 39 and len(walked) < 10


def test_hits_pay_for_the_next_capture(limit: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credit, "_SECONDS", 1e-9)
    monkeypatch.setattr(credit, "_SHARE", 0.3)
    compiled_autograd.reset()
    for _ in range(5):
        backward(2, 3)
    backward(2, 4)
    assert gradc.counters["compiled_autograd"]["captures"] == 2 and not gradc.counters["fallbacks"]


def test_who_asks_to_see_captures_gets_all(limit: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credit, "_SECONDS", 1e-9)
    compiled_autograd.reset()
    for depth in range(1, 5):
        backward(2, depth)  # the same session, which now rests
    gradc.counters.clear()
    with compiled_autograd.enable(gradc.compile(fullgraph=True), dynamic=False):
        for depth in range(5, 9):
            torch.autograd.backward(chain(2, depth))
    assert gradc.counters["compiled_autograd"]["captures"] == 4
