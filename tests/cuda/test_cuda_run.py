"""What runs on a GPU, on the CPU: the judges, the processes and their ends, the time that parts get, the page, speed."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time

import pytest
import torch

from benchmarks import on_device
from benchmarks.devices import Device, Memory
from tests.cuda import __main__ as command
from tests.cuda import page, parts, schedule, worker
from tests.cuda.parts import PARTS, Part, Target
from tests.cuda.verdict import BAD, Status, Verdict, counts, read

HOST = Target("cpu")


def judged(part, item, target=HOST):
    return list(PARTS[part].judge(target, item, 60.0))


@pytest.mark.parametrize(
    "part, item",
    [
        ("devices", "one_op"),
        ("sweep", "ops, float32, sin"),
        ("fuzz", "straight 0/3"),
    ],
)
def test_an_item_of_each_part_is_judged(part, item):
    assert {verdict.status for verdict in judged(part, item)} <= {Status.AS_EAGER, Status.EAGERLY, Status.OTHER}
    assert item in PARTS[part].items(HOST)


def test_whole_steps_are_judged(monkeypatch):
    monkeypatch.setattr(Target, "num_steps", lambda target, model: 2)
    assert [each.status for each in judged("steps", "PPO update: gradc: step")] == [Status.AS_EAGER]


def test_what_the_compiler_gets_wrong_is_wrong():
    """aot_eager decides during forward under which autocast backward runs."""
    target = dataclasses.replace(HOST, compiler="aot_eager")
    (found,) = judged("semantics", "semantics.ambient_state.backward_outside_autocast", target)
    assert found.status is Status.WRONG and "values differ" in found.detail


# ---- processes

SPEAKS = """
import json, os, sys, time
print("started", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["item"] == "dies" and sys.argv[1] == "gradc" or asked["item"] == "dies in eager, too":
        print("the error is told", file=sys.stderr)
        os._exit(3)
    if asked["item"] == "hangs":
        time.sleep(60)
    print(json.dumps({"part": "", "item": asked["item"], "status": "as eager", "detail": "", "seconds": 0, "data": {}}))
    print("done", flush=True)
"""


class Speaks(worker.Worker):
    """Its process has no torch."""

    def start(self, settings, compiler):
        pipe = subprocess.PIPE
        with self._log.open("ab") as log:
            return subprocess.Popen([sys.executable, "-c", SPEAKS, compiler], stdin=pipe, stdout=pipe, stderr=log)


def test_a_process_that_dies_or_hangs_costs_one_item(tmp_path):
    asked = Speaks(HOST, tmp_path / "log")
    items = ["well", "dies", "well", "hangs", "dies in eager, too", "well"]
    found = [verdict for item in items for verdict in asked.judge("devices", item, 5.0, 0.5)]
    asked.end()
    well, other = Status.AS_EAGER, Status.OTHER
    assert [each.status for each in found] == [well, Status.CRASHES, well, Status.HANGS, other, well]
    assert "ended with 3; the error is told" in found[1].detail
    assert {each.part for each in found} == {"devices"}


def test_no_process_at_all_is_no_silence(tmp_path):
    class Dead(worker.Worker):
        def start(self, settings, compiler):
            return subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    told = []
    schedule.run(HOST, ["devices"], 5.0, 1, tmp_path, told.append, Dead)
    assert told[0].status in BAD and "no process can be started" in told[0].detail


def test_parts_share_the_time(tmp_path, monkeypatch):
    class Sleeps:
        def __init__(self, target, log):
            pass

        def begin(self, part):
            pass

        def judge(self, part, item, seconds, limit):
            time.sleep(0.01)
            yield Verdict(part, item, Status.AS_EAGER)

        def end(self):
            pass

    def part(count, weight, **settings):
        return Part("", lambda target: [str(number) for number in range(count)], None, weight, **settings)

    chosen = {"fails": Part("", lambda target: 1 / 0, None, 1)}
    chosen |= {"short": part(3, 1), "long": part(1000, 1), "fuzz": part(1000, 1), "alone": part(2, 1, jobs=1, is_timed=True)}
    monkeypatch.setattr(schedule, "PARTS", chosen)
    told = []
    left = schedule.run(HOST, list(chosen), 0.6, 3, tmp_path, told.append, Sleeps)
    assert [each.part for each in left] == list(chosen)
    judged = {each.part: each.judged for each in left}
    assert judged["short"] == 3 and judged["alone"] == 2 and judged["fails"] == 0
    assert 3 < judged["long"] < 1000 and 3 < judged["fuzz"] < 1000
    assert len(told) == sum(judged.values()) + 1
    assert [each.part for each in told[-3:]] == ["alone", "alone", "fails"]
    assert told[-1].status in BAD


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["tests.cuda"])
    assert command.main() == 2
    assert "There is no GPU" in capsys.readouterr().out


# ---- the page


def test_the_page_tells_counts_faults_reasons_and_figures(tmp_path):
    eager = on_device.Measured("PPO update", "eager", 0.004, 0.003, 1.0, 0.1, 0.2, 2 << 20, 4 << 20, "eager's")
    step = dataclasses.replace(eager, way="gradc: step", seconds=0.0004, speed=10.0, of_floor=0.96, allocated=3 << 20)
    step = dataclasses.replace(step, did={"device_graphs": {"recorded": 2}})
    verdicts = [
        Verdict("devices", "mlp", Status.AS_EAGER),
        Verdict("devices", "whole_step", Status.EAGERLY, "optimizer, stream"),
        Verdict("sweep", "ops, float32, sin", Status.WRONG, "values | differ\nmore"),
        *(Verdict("speed", each.way, Status.MEASURED, data=dataclasses.asdict(each)) for each in (eager, step)),
    ]
    (tmp_path / "results.jsonl").write_text("".join(verdict.line() + "\n" for verdict in verdicts))
    page.write_about(tmp_path, {"card": "one card", "commit": "abc"})
    page.write_left(tmp_path, [schedule.Left("devices", 2, 2, 1.0), schedule.Left("sweep", 1, 1632, 9.0)])
    text = page.text(tmp_path)
    assert "- card: one card\n- commit: abc\n" in text
    assert "| programs of `tests/devices` | 2 of 2 | 1 | 1 | 0 | 0 | 0 | 0 |" in text
    assert "| torch's own samples of ops and modules | 1 of 1632, drawn | 0 | 0 | 0 | 1 | 0 | 0 |" in text
    assert "- sweep, `ops, float32, sin`: wrong: values \\| differ\n" in text
    assert "| PPO update | 4.000 | 10.00 |" in text
    assert "| optimizer | 1 |" in text and "| stream | 1 |" in text
    assert "| gradc: step | 0.400 | 3.000 | 10.00 | 0.96 | 0.20 | 3 (1.50) | 4 (1.00) | 2 recorded | eager's |  |" in text
    assert counts(read(tmp_path / "results.jsonl"))[Status.MEASURED] == 2


def test_the_commit_is_what_the_variable_says(monkeypatch):
    monkeypatch.setenv("GRADC_COMMIT", "abc")
    assert page.commit() == "abc"


# ---- the benchmark


@dataclasses.dataclass(frozen=True)
class WithGraphs(Device):
    """Stands in for a GPU: a step that was captured is called again."""

    has_graphs = True

    def peak(self):
        return Memory(3 << 20, 5 << 20)

    def capture(self, step):
        step()
        return step


def test_steps_are_timed_beside_eager_and_the_floor(monkeypatch):
    monkeypatch.setattr(on_device, "SECONDS_OF_BLOCKS", 0.1)
    monkeypatch.setattr(on_device, "SECONDS_OF_A_BLOCK", 0.002)
    monkeypatch.setattr(on_device, "_capturable", lambda optimizer: optimizer)  # torch refuses on the CPU
    device = WithGraphs("cpu")
    ways = on_device.ways_on(device, with_torch=False)
    ways["raises"] = dataclasses.replace(ways["gradc: step"], compile_step=lambda step: 1 / 0)
    chosen = {name: ways[name] for name in ("eager", "floor", "gradc: step", "raises")}
    found = {each.way: each for each in on_device.measure("Linear+Tanh", chosen, device, 60.0)}
    assert list(found) == list(chosen)
    step = found["gradc: step"]
    assert step.bits == "eager's" and step.error == "" and not any(step.counted.values())
    assert step.speed > 0 and step.of_floor == pytest.approx(step.speed / found["floor"].speed)
    assert (step.allocated, step.reserved) == (3 << 20, 5 << 20)
    assert found["raises"].error == "ZeroDivisionError: division by zero"
    assert "3 (1.00)" in on_device.table(list(found.values()))
    assert json.loads(json.dumps(dataclasses.asdict(step)))["way"] == "gradc: step"


def test_a_way_for_which_no_time_is_left_says_so():
    device = Device("cpu")
    chosen = {name: on_device.WAYS[name] for name in ("eager", "gradc: step")}
    found = list(on_device.measure("Linear+Tanh", chosen, device, 0.0))
    assert [each.error for each in found] == ["", on_device.NO_TIME]


def test_names_of_parts_are_those_there_are():
    with pytest.raises(command.argparse.ArgumentTypeError, match="there is no part 'time'"):
        command._parts("time")
    assert command._parts("speed,devices") == ["devices", "speed"]
    assert set(parts.DRAWN) <= set(PARTS)
