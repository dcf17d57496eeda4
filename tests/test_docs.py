"""What holds the pages of docs/ together: links lead somewhere, each page is in the site's nav, and none needs the network."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
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


def test_every_public_name_is_in_the_api():
    """What a line beginning with ::: names exists, or `make docs` fails."""
    names = re.findall(r'^    "(\w+)",$', (ROOT / "gradc/__init__.py").read_text(), re.MULTILINE)
    page = (ROOT / "docs/api.md").read_text()
    assert len(names) > 10 and [name for name in names if f"gradc.{name}" not in page] == []


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
