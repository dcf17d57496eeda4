"""What runs on a device is recorded as graphs of the device, and replayed, with eager's bits: the programs of graphs.py."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest

from gradc import native
from tests.devices.graphs import PROGRAMS
from tests.devices.processes import ROOT

if not native.is_built():
    pytest.skip("Programs run in Python, which records nothing", allow_module_level=True)


@functools.cache
def _outcomes() -> dict[str, str]:
    settings = {"GRADC_COMPILE_SECONDS": "none", "GRADC_COMPARE_WITH_EAGER": "0"}
    command = [sys.executable, "-m", "tests.devices.graphs"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300)
    lines = (line.partition(": ") for line in done.stdout.splitlines())
    found = {name: wrong for name, _, wrong in lines if name in PROGRAMS}
    return dict.fromkeys(PROGRAMS, f"the process ended there:\n{done.stderr[-4000:]}") | found


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str) -> None:
    assert _outcomes()[name] == ""
