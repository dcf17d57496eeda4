"""The README's first program runs and prints what the README says."""

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def test_first_program_prints_what_is_said():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", blocks("python")[0]], capture_output=True, text=True)
    assert done.stdout == blocks("text")[0], done.stderr


def test_commands_exist():
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    for command in re.findall(r"^make (\w+)", blocks("sh")[0], re.MULTILINE):
        assert re.search(rf"^{command}:", makefile, re.MULTILINE)
