"""Each example runs, in its short form, and gradc trains there what eager trains, bit for bit."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if "from _side_by_side import" in path.read_text()]

ALL_COMPILED = {"GRADC_COMPILE_SECONDS": "none", "GRADC_COMPARE_WITH_EAGER": "0"}  # however busy the machine is


def run(path, *arguments):
    environment = {**os.environ, **ALL_COMPILED, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(path), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def header(path):
    return path.read_text().split('"""')[1]


def reasons(text):
    """Why gradc ran parts eagerly; how often depends on the number of steps."""
    (said,) = re.findall(r"gradc ran eagerly: (.*)", text)
    return set(ast.literal_eval(said)) if said != "nothing" else set()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_is_bitwise_eager(path, tmp_path):
    printed = run(path, "--short", "--out", tmp_path / "new")
    assert re.search(r"^eager +(\S+) +yes .*^gradc +\1 +yes +0 ", printed, re.MULTILINE | re.DOTALL), printed
    assert (tmp_path / "new" / f"{path.stem}.png").read_bytes().startswith(b"\x89PNG")
    assert reasons(printed) <= reasons(header(path)) - {"slower than eager"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_header_says_how_to_run_it_and_what_it_printed(path):
    assert f"python examples/{path.name}" in header(path)
    assert re.search(r"^    gradc +\S+ +yes +0$", header(path), re.MULTILINE)


def test_inner_autocast():
    assert [line.split()[-1] for line in run(ROOT / "examples" / "inner_autocast.py").splitlines()] == ["True"] * 4
