"""The pages of docs/ that show code run from top to bottom, and print what they say.

``python -m tests.test_how_it_works`` writes what they print into them.
"""

import itertools
import os
import re
import tempfile
from pathlib import Path

import pytest

from tests import forked
from tests.test_import_direction import ROOMS

DOCS = Path(__file__).parent.parent / "docs"
OF_LIBRARIES = sorted(set((DOCS / "recipes").glob("*.md")) - {DOCS / "recipes" / "ci.md"})  # run by tests/world/test_recipes.py
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "```python" in page.read_text() and page not in OF_LIBRARIES]
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
MARK = "======== next block"


def printed(page: str, prelude: str = "") -> list[str]:
    """What each Python block of the page prints, run in one fresh process, behind ``prelude``."""
    program = prelude + f"print({MARK!r})\n".join(code for code, _ in BLOCK.findall(page))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("GRADC_", "TORCH_LOGS"))}
    environment["GRADC_COMPILE_SECONDS"] = "none"  # what is counted hangs on no clock
    environment["PYTHONPATH"] = os.pathsep.join([str(DOCS.parent), *filter(None, [environment.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "head.py").write_text(program)
        done = forked.python("-W", "ignore", f"{folder}/head.py", environment=environment, cwd=Path(folder))
    assert done.returncode == 0, done.stderr
    output = done.stdout.replace(f"{folder}/", "")
    return [re.sub(r"\n\n+$", "\n", text) for text in output.split(f"{MARK}\n")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_prints_what_it_says(page):
    said = [text for _, text in BLOCK.findall(page.read_text())]
    for number, (ours, theirs) in enumerate(zip(printed(page.read_text()), said, strict=True)):
        assert ours == theirs, f"block {number}"


def test_every_block_of_python_is_one_that_is_run():
    """Indented ones, or ones that begin otherwise, would be shown and never run."""
    for page in [*PAGES, *OF_LIBRARIES]:
        assert len(BLOCK.findall(page.read_text())) == len(
            re.findall(r"^ *(?:```|~~~) ?(?:py|>>>)", page.read_text(), re.MULTILINE)
        )


def test_the_tree_of_the_architecture_is_the_list_of_the_guard():
    rows = re.findall(r"^\| (`.+?) \|", (DOCS / "architecture.md").read_text(), re.MULTILINE)
    named = [re.findall(r"`(\w+)`", row) for row in rows]
    whole = {room for room in ROOMS if "." not in room}  # the rooms inside of others stand in their rows
    assert {name for row in named for name in row} == whole - {"_C", "gradc"}
    assert all(min(map(ROOMS.index, row)) > max(map(ROOMS.index, below)) for row, below in itertools.pairwise(named))


def test_every_note_cited_is_a_page():
    package = DOCS.parent / "gradc"
    cited = {name for path in package.rglob("*.*") if path.suffix in (".py", ".h", ".cpp") for name in note_names(path)}
    titles = {path.read_text().splitlines()[0] for path in (DOCS / "notes").glob("*.md")}
    assert {f"# Note [{name}]" for name in cited} <= titles


def note_names(path: Path) -> list[str]:
    return re.findall(r"Note \[([^\]]+)\]", path.read_text())


def rewrite(page: Path, prelude: str = "") -> None:
    texts = iter(printed(page.read_text(), prelude))

    def block(match: re.Match[str]) -> str:
        text = next(texts)
        return f"```python\n{match[1]}```\n" + (f"```text\n{text}```\n" if text or match[2] is not None else "")

    page.write_text(BLOCK.sub(block, page.read_text()))


if __name__ == "__main__":
    for each in PAGES:
        rewrite(each)
