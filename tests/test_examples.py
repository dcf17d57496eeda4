"""Each example runs, in its short form, and gradc trains there what eager trains, bit for bit.

``python -m tests.test_examples`` writes the table of docs/examples.md anew, by the heads of the examples.
"""

import ast
import os
import re
from pathlib import Path

import pytest

from gradc.text_table import table
from tests import forked

ROOT = Path(__file__).parent.parent
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if "from _side_by_side import" in path.read_text()]

PAGE = ROOT / "docs" / "examples.md"
BEFORE = {"ContextVar mutation not supported": "Unsupported method call"}  # Dynamo's words -> those of 2.13, as in the heads
ALL_COMPILED = {"GRADC_COMPILE_SECONDS": "none", "GRADC_COMPARE_WITH_EAGER": "0"}  # however busy the machine is


def run(path, *arguments):
    environment = {**os.environ, **ALL_COMPILED, "PYTHONPATH": str(ROOT)}
    done = forked.python(path, *arguments, environment=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def header(path):
    return path.read_text().split('"""')[1]


def reasons(text):
    """Why gradc ran parts eagerly, in the words of torch 2.13; how often depends on the number of steps."""
    (said,) = re.findall(r"gradc ran eagerly: (.*)", text)
    return {BEFORE.get(reason, reason) for reason in ast.literal_eval(said)} if said != "nothing" else set()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_is_bitwise_eager(path, tmp_path):
    printed = run(path, "--short", "--out", tmp_path / "new")
    assert re.search(r"^eager +(\S+) +yes .*^gradc +\1 +yes +0 ", printed, re.MULTILINE | re.DOTALL), printed
    assert (tmp_path / "new" / f"{path.stem}.png").read_bytes().startswith(b"\x89PNG")
    assert reasons(printed) <= reasons(header(path)) - {"slower than eager"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_gradc_check_is_clean(path, tmp_path):
    """The steps of the optimizers of all three runs, in turn; a step of PPO makes 16 for each run."""
    words = f"--words=--short --out {tmp_path / 'new'}"
    printed = run("-m", "gradc.cli", "check", path, words, "--steps", 40 if path.stem == "ppo" else 3)
    assert "all equal eager, bit for bit." in printed


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_header_says_how_to_run_it_and_what_it_printed(path):
    assert f"python examples/{path.name}" in header(path)
    assert re.search(r"^    gradc +\S+ +yes +0$", header(path), re.MULTILINE)


def found(path, run):
    """What the head says of a run: eager's bits, or how far off a parameter was at most, or that it raises."""
    bitwise, largest = re.search(rf"^    {re.escape(run)} +\S+ +(\S+) +(\S+)$", header(path), re.MULTILINE).groups()
    return {"yes": "eager's, bit for bit", "no": f"off by up to {largest}"}.get(bitwise, bitwise)


def table_of_the_page():
    rows = [
        [header(path).partition(".\n")[0], f"`{path.name}`", found(path, "torch.compile"), found(path, "gradc")]
        for path in EXAMPLES
    ]
    return table(["what is trained", "example", "by torch.compile", "by gradc"], rows, markdown=True)


def test_the_page_of_examples_says_what_their_heads_say():
    assert table_of_the_page() in PAGE.read_text(), "python -m tests.test_examples writes it anew"


def test_inner_autocast():
    assert [line.split()[-1] for line in run(ROOT / "examples" / "inner_autocast.py").splitlines()] == ["True"] * 4


if __name__ == "__main__":
    PAGE.write_text(
        re.sub(
            r"^\| what is trained .*\n(?:\|.*\n)+", lambda _: f"{table_of_the_page()}\n", PAGE.read_text(), flags=re.MULTILINE
        )
    )
