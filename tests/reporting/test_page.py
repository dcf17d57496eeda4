"""The page of a report, without a browser: one file that loads nothing, with all that the report says in it."""

import dataclasses
import json
import math
import re
from html.parser import HTMLParser

import pytest

from gradc.errors import GradcError
from gradc.parity.differences import Difference
from gradc.parity.report import Report
from gradc.reporting.page import page_of
from tests.reporting.synthetic import SHARP, synthetic


class Elements(HTMLParser):
    """The elements of a page, and the text of its scripts by id."""

    def __init__(self, page):
        super().__init__()
        self.found, self.texts, self.title = [], {}, ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        tag, attrs = self.found[-1] if self.found else ("", {})
        if tag == "script":
            name = attrs.get("id", "")
            self.texts[name] = self.texts.get(name, "") + data
        if tag == "title":
            self.title += data.removesuffix("\n")


@pytest.fixture(scope="module")
def page():
    return page_of(synthetic(50))


@pytest.fixture(scope="module")
def elements(page):
    return Elements(page)


def test_nothing_is_loaded(elements):
    loading = [attrs for tag, attrs in elements.found if "src" in attrs or (tag == "link" and attrs["href"] != "data:,")]
    assert loading == []
    assert [attrs["href"] for tag, attrs in elements.found if tag == "a" and not attrs["href"].startswith("#")] == []


def test_its_own_scripts_ask_for_nothing(elements):
    own = elements.texts[""]
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(|https?://|innerHTML|insertAdjacentHTML|document\.write", own)


def test_all_ops_are_in_the_data(elements):
    data = json.loads(elements.texts["data"])
    report = synthetic(50)
    assert [data["names"][op[1]] for op in data["ops"]] == [op.name for op in report.ops]
    assert [data["lines"][op[5]][3] for op in data["ops"]] == [op.line.code for op in report.ops]
    dtypes = [data["names"][data["values"][op[6][0]][1]] for op in data["ops"]]
    assert dtypes == [op.made[0].dtype for op in report.ops]
    assert [op[11] for op in data["ops"]] == [list(op.partners) for op in report.ops]


def test_what_the_user_wrote_ends_no_script(page, elements):
    assert elements.title == f"step {SHARP}: gradc report"
    assert page.count(SHARP) == 0 and json.loads(elements.texts["data"])["title"] == f"step {SHARP}"


def test_it_is_made_for_people_who_do_not_see_it_and_for_light_and_dark(page, elements):
    tags = [tag for tag, _ in elements.found]
    assert {"main", "nav", "header", "aside", "noscript"} <= set(tags) and ("html", {"lang": "en"}) in elements.found
    headings = {attrs["id"] for _, attrs in elements.found if attrs.get("id", "").endswith("-heading")}
    sections = [attrs for tag, attrs in elements.found if tag == "section"]
    assert len(sections) == 7 and {attrs["aria-labelledby"] for attrs in sections} == headings
    charts = [attrs for _, attrs in elements.found if attrs.get("class") == "chart"]
    assert len(charts) == 3 and all(attrs["role"] == "img" and attrs["aria-label"] for attrs in charts)
    assert ("meta", {"name": "color-scheme", "content": "light dark"}) in elements.found
    assert "prefers-color-scheme: dark" in page


def test_ten_thousand_ops_are_a_few_megabytes():
    data = Elements(page_of(synthetic(10_000))).texts["data"]
    assert len(json.loads(data)["ops"]) == 10_000 and len(data) < 4_000_000


def test_differences_without_bounds_are_no_numbers_of_json():
    differences = tuple(Difference("w", "1", "2", largest) for largest in (math.inf, math.nan, 0.5))
    data = Elements(page_of(dataclasses.replace(synthetic(50), parity=Report(3, differences)))).texts["data"]
    found = json.loads(data, parse_constant=lambda text: pytest.fail(text))["parity"]["differences"]
    assert [each["largest"] for each in found] == [None, None, 0.5]


def test_without_plotly_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("gradc.reporting.page.importlib.util.find_spec", lambda name: None)
    with pytest.raises(GradcError, match=r"plotly, which is not installed\.\n  Run: pip install 'plotly>=6'"):
        page_of(synthetic(50))
