"""One process of a sweep: judges every n-th op and writes a JSON line for each verdict, and for each op it begins.

work: (options, file) -> None       goes on where the file ends, so that it can be restarted after a crash
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import pathlib
import warnings
from typing import Any

import torch

from tests.compilers import Compiler, find
from tests.sweep import errors
from tests.sweep.judge import STATES, Verdict, judge
from tests.sweep.suites import SUITES, Choice, Subject

ALL_SUITES = {**SUITES, "errors": errors.subjects}
_OTHER_JUDGES = {"errors": (errors.judge, errors.WAYS)}


def work(options: argparse.Namespace, file: pathlib.Path) -> None:
    """Judge this process's share."""
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    index, total = (int(part) for part in options.shard.split("/"))
    choice = Choice(getattr(torch, options.dtype), options.order, options.samples)
    compiler = find(options.compiler)
    subjects = [subject for subject in ALL_SUITES[options.suite](choice) if options.only in subject.name]
    done = {line["begin"] for line in _lines(file) if "begin" in line}
    for subject in subjects[index::total]:
        if subject.name in done:
            continue
        _append(file, {"begin": subject.name})
        for verdict in judge_subject(options.suite, subject, compiler, choice):
            _append(file, dataclasses.asdict(verdict))


def record_crash(suite: str, file: pathlib.Path) -> bool:
    """Note that the op begun last killed the process. False if there was none, so that a restart would not help."""
    begun = [line["begin"] for line in _lines(file) if "begin" in line]
    if not begun or any(verdict["status"] == "crash" and verdict["name"] == begun[-1] for verdict in read(file)):
        return False
    for state in _judge_of(suite)[1]:
        _append(file, dataclasses.asdict(Verdict(begun[-1], 0, state, "crash")))
    return True


def read(file: pathlib.Path) -> list[dict[str, Any]]:
    """The verdicts in ``file``."""
    return [line for line in _lines(file) if "begin" not in line]


def _judge_of(suite: str) -> tuple[Any, tuple[str, ...]]:
    """What judges a sample of the suite, and the states in which."""
    return _OTHER_JUDGES.get(suite, (judge, STATES))


def judge_subject(suite: str, subject: Subject, compiler: Compiler, choice: Choice) -> list[Verdict]:
    """Of each sample, in each state."""
    judge_sample, states = _judge_of(suite)
    if subject.skip:
        return [Verdict(subject.name, 0, state, "skipped", subject.skip) for state in states]
    try:
        torch.manual_seed(0)
        samples = subject.samples()
    except Exception as error:
        reason = f"its samples cannot be made: {type(error).__name__}: {str(error)[:80]}"
        return [Verdict(subject.name, 0, state, "skipped", reason) for state in states]
    verdicts = []
    for number, sample in enumerate(samples):
        try:
            verdicts += judge_sample(subject.name, number, sample, compiler, choice.order)
        except Exception as error:
            reason = f"the sweep itself: {type(error).__name__}: {str(error)[:150]}"
            verdicts += [Verdict(subject.name, number, state, "crash", reason) for state in states]
    compiler.reset()
    return verdicts


def _lines(file: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _append(file: pathlib.Path, line: dict[str, Any]) -> None:
    with file.open("a") as out:
        out.write(json.dumps(line) + "\n")
