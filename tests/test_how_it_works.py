"""docs/how-it-works.md runs from top to bottom, and prints what it says. ``python -m tests.test_how_it_works`` rewrites it."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "how-it-works.md"
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
MARK = "======== next block"


def printed(page: str) -> list[str]:
    """What each Python block of the page prints, run in one fresh process."""
    program = f"print({MARK!r})\n".join(code for code, _ in BLOCK.findall(page))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("GRADC_", "TORCH_LOGS"))}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "head.py").write_text(program)
        command = [sys.executable, "-W", "ignore", "head.py"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    output = done.stdout.replace(f"{folder}/", "")
    return [re.sub(r"\n\n+$", "\n", text) for text in output.split(f"{MARK}\n")]


def test_the_page_prints_what_it_says():
    page = PAGE.read_text()
    said = [text for _, text in BLOCK.findall(page)]
    for number, (ours, theirs) in enumerate(zip(printed(page), said, strict=True)):
        assert ours == theirs, f"block {number}"


def test_links_lead_somewhere():
    for page in (*PAGE.parent.rglob("*.md"), PAGE.parent.parent / "README.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_every_note_cited_is_a_page():
    package = PAGE.parent.parent / "gradc"
    cited = {name for path in package.rglob("*.*") if path.suffix in (".py", ".h", ".cpp") for name in note_names(path)}
    titles = {path.read_text().splitlines()[0] for path in (PAGE.parent / "notes").glob("*.md")}
    assert {f"# Note [{name}]" for name in cited} <= titles


def note_names(path: Path) -> list[str]:
    return re.findall(r"Note \[([^\]]+)\]", path.read_text())


def rewrite() -> None:
    page = PAGE.read_text()
    texts = iter(printed(page))

    def block(match: re.Match[str]) -> str:
        text = next(texts)
        return f"```python\n{match[1]}```\n" + (f"```text\n{text}```\n" if text or match[2] is not None else "")

    PAGE.write_text(BLOCK.sub(block, page))


if __name__ == "__main__":
    rewrite()
