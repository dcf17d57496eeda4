"""What Dynamo does for nobody is left out of gradc's compilations, and done for who asks for it."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
PROGRAM = """
import sys, torch, gradc
from torch._dynamo import config
compile = gradc.compile if sys.argv[1] == "gradc" else lambda f: torch.compile(f, backend="aot_eager")
class Scaler:
    def scale(self, x):
        self.calls = 1
        return x.sin() * 2
SETTINGS
compile(Scaler().scale)(torch.ones(3))
print("torch.distributed.tensor.experimental" in sys.modules, "torch.export._trace" in sys.modules)
"""


def run(tmp_path: pathlib.Path, compiler: str, settings: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"  # names of functions are read from a file
    program.write_text(PROGRAM.replace("SETTINGS", settings))
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run([sys.executable, program, compiler], capture_output=True, text=True, env=variables, check=True)


@pytest.mark.parametrize(("compiler", "loaded"), [("gradc", "False False"), ("aot_eager", "True True")])
def test_modules_that_are_not_in_use_are_not_loaded(tmp_path: pathlib.Path, compiler: str, loaded: str) -> None:
    assert run(tmp_path, compiler).stdout.strip() == loaded


def test_a_log_that_is_on_names_functions(tmp_path: pathlib.Path) -> None:
    assert "(Scaler.scale)" in run(tmp_path, "gradc", TORCH_LOGS="trace_call").stderr


def test_a_warning_that_is_on_names_side_effects(tmp_path: pathlib.Path) -> None:
    done = run(tmp_path, "gradc", 'config.side_effect_replay_policy = "warn"')
    assert "side effects" in done.stderr
