"""What holds the pages of docs/ together: links lead somewhere, commands exist, nothing that can be set is left out.

Each page is in the site's nav, and none needs the network. That the blocks of Python run is for tests/test_how_it_works.py.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradc import cli, journal
from gradc.cli.words import COMMANDS
from gradc.config import DEFAULTS

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
OUTSIDE = ROOT / "CONTRIBUTING.md"
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def prose(page: Path) -> str:
    return CODE.sub("", page.read_text())


def links(page: Path) -> list[tuple[str, str]]:
    """The relative links of a page: each a path, "" for the page itself, and a heading's anchor or ""."""
    found: list[tuple[str, str]] = re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", prose(page))
    return found


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings that GitHub and mkdocs agree on."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    return {heading.replace(" ", "-") for heading in headings} & {re.sub(r"[-\s]+", "-", heading) for heading in headings}


def lost_links(page: Path) -> list[str]:
    def leads_somewhere(target: str, anchor: str) -> bool:
        file = page.parent / target if target else page
        return file.exists() and (not anchor or anchor in anchors(file))

    return [f"{target}#{anchor}" for target, anchor in links(page) if not leads_somewhere(target, anchor)]


@pytest.mark.parametrize("page", [*PAGES, OUTSIDE], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    assert lost_links(page) == []


def test_a_link_that_leads_nowhere_is_seen(tmp_path):
    (tmp_path / "b.md").write_text("# A heading\n```\n# no heading\n```\n")
    (tmp_path / "a.md").write_text("# Here\n[1](b.md#a-heading) [2](#here) [3](c.md)[4](b.md#no-heading) `[5](d.md)` [6](#n)\n")
    assert lost_links(tmp_path / "a.md") == ["c.md#", "b.md#no-heading", "#n"]


def test_links_of_the_site_stay_in_the_site():
    leaving = [(page, target) for page in PAGES[:-1] for target, _ in links(page) if target and leaves_docs(page, target)]
    assert leaving == []


def leaves_docs(page: Path, target: str) -> bool:
    return not (page.parent / target).resolve().is_relative_to(ROOT / "docs")


def test_every_page_is_in_the_nav_once():
    nav = re.findall(r"^ +- .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(nav) == sorted(str(page.relative_to(ROOT / "docs")) for page in PAGES[:-1])


def test_no_page_of_the_site_loads_anything_from_elsewhere():
    """mkdocs-material takes its renderer of mermaid from a CDN; a picture with an address of its own would be another case."""
    for page in PAGES[:-1]:
        assert "```mermaid" not in page.read_text(), page
        assert not re.search(r"!\[[^\]]*\]\(https?:|<(?:img|script|link)\b", prose(page)), page


def test_the_site_brings_its_own_worker():
    """Else the theme's plug-in loads one from a CDN, and the search does not work from the disk."""
    assert "polyfills: [javascripts/iframe-worker.js]" in (ROOT / "mkdocs.yml").read_text()


def commands(page: Path) -> Iterator[str]:
    """What the page shows to be typed into a shell: in blocks, in steps of a workflow, and as code within a line."""
    text = page.read_text()
    for block in re.findall(r"^```(?:sh|yaml)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield from (re.sub(r"^ *- run: |#.*", "", line).strip() for line in block.splitlines())
    yield from re.findall(
        r"`((?:gradc|make|python) [^`\n]*)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    )


def exists(command: str) -> bool:
    words = shlex.split(re.sub(r" > .*", "", command))
    while words and re.match(r"[A-Z_]+=", words[0]):
        del words[0]
    match words:
        case ["make", *targets]:
            names = [word for word in targets if "=" not in word]
            return all(re.search(rf"^{name}:", (ROOT / "Makefile").read_text(), re.MULTILINE) for name in names)
        case ["gradc", *arguments]:
            return is_of_the_command_line(arguments)
        case ["python", "-m", module, *_] if module.startswith(("tests.", "benchmarks.")):
            path = ROOT / module.replace(".", "/")
            return path.with_suffix(".py").exists() or (path / "__main__.py").exists()
        case ["python", path, *_] if path.endswith(".py"):
            return (ROOT / path).exists()
    return True


def is_of_the_command_line(arguments: list[str]) -> bool:
    """Whether it takes them; a command may stand alone where a page speaks of it."""
    arguments = arguments if len(arguments) > 1 else [*arguments, "--help"]
    try:
        cli.parser().parse_args(arguments)
    except SystemExit as end:
        return end.code == 0
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page):
    assert [command for command in commands(page) if not exists(command)] == []


def test_a_command_that_does_not_exist_is_seen(tmp_path):
    wrong = [
        "make tset",
        "gradc verify",
        "gradc check a.py:f --step=3 --agianst=x",
        "python -m tests.nothing",
        "python examples/none.py",
    ]
    (tmp_path / "a.md").write_text("".join(f"`{command}`\n" for command in [*wrong, "make test", "gradc check", "gradc env"]))
    assert [command for command in commands(tmp_path / "a.md") if not exists(command)] == wrong


def test_what_can_be_set_or_asked_is_in_the_page_of_usage():
    page = (ROOT / "docs/usage.md").read_text()
    package = "".join(path.read_text() for path in [*(ROOT / "gradc").rglob("*.py"), ROOT / "setup.py"])
    of_the_makefile = {"GRADC_WHEEL", "GRADC_SANITIZE", "GRADC_URL"}
    variables = set(re.findall(r'"(GRADC_[A-Z_]+)"', package)) - of_the_makefile
    groups = re.findall(r'\bcount\("(\w+)"|counters\["(\w+)"\]', package)
    commands = [*COMMANDS]
    assert len(variables) > 6 and len(groups) > 8 and len(commands) > 4
    known = f"{page}{(ROOT / 'docs/contributing.md').read_text()}"
    assert [name for name in variables if name not in known] == []
    assert [name for name in (*DEFAULTS, *journal.ARTIFACTS) if f"`{name}`" not in page] == []
    assert [name for pair in groups for name in pair if name and f"| `{name}` |" not in page] == []
    assert [name for name in commands if f"`gradc {name}" not in page] == []


def rows(name: str) -> list[list[str]]:
    """The cells of the tables of a page."""
    lines = (ROOT / "docs" / f"{name}.md").read_text().splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]


def test_the_guarantees_say_what_the_tables_say():
    page = (ROOT / "docs/guarantees.md").read_text()
    behaviours = {row[0]: row[1:] for row in rows("semantics")[:4]}
    aot_eager, _, gradc = behaviours["different"]
    assert gradc == "0" and f"differs in none, aot_eager in {aot_eager} |" in page
    assert f"| {re.search(r'of (.+) behaviours', str(list(behaviours)))[1]} behaviours;" in page
    models = [row[4] for row in rows("architectures")[1:]]
    assert set(models) == {"bitwise"} and f"| {len(models)} runs" in page
    loops = [row[1:4] for row in rows("world") if len(row) > 12][1:]
    assert all(row == ["bitwise"] * 3 for row in loops) and f"| {len(loops)} training loops" in page
    swept = [row[11:] for row in rows("sweep") if row[4:5] == ["gradc"]]
    assert swept and all(row == ["", ""] for row in swept) and "| no mismatch, nothing raised" in page
