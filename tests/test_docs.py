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
