"""The site in a browser: each symptom is found in two clicks and is the first hit of the search, from the disk; tables fit.

Needs what `make docs` builds, and Chromium.
"""

import pathlib
import time

import pytest

from tests.reporting.chromium import PROGRAM, Page

SITE = pathlib.Path(__file__).parent.parent / "build" / "site"
SYMPTOMS = {
    "my gradients differ": "symptoms/my-gradients-differ",
    "no speed-up": "symptoms/no-speed-up",
    "captured again": "symptoms/captured-again",
    "on my GPU": "symptoms/on-my-gpu",
    "DistributedDataParallel": "symptoms/ddp-and-fsdp",
    "Trainer": "symptoms/trainer",
    "notebooks": "symptoms/notebooks",
    "platforms": "platforms",
    "report a bug": "report-a-bug",
}
PAGES = sorted(str(page.relative_to(SITE).with_suffix("")) for page in SITE.rglob("*.html") if "<table" in page.read_text())
CLICK = """(() => {const link = [...document.querySelectorAll('%s')].find(each => each.pathname.endsWith('/%s.html'));
  link.click(); return link.innerText})()"""
UNWRAPPED = """[...document.querySelectorAll('.md-content table')].filter(each =>
  !each.closest('.md-typeset__scrollwrap') && each.scrollWidth > each.parentElement.clientWidth + 1).length"""
pytestmark = pytest.mark.skipif(
    PROGRAM is None or not (SITE / "symptoms.html").exists(), reason="no Chromium, or no site: make docs builds it"
)


@pytest.fixture(scope="module")
def browser():
    with Page() as page:
        yield page


def show(browser, name):
    browser.call("Page.navigate", url=(SITE / f"{name}.html").as_uri())
    browser.wait(f"location.pathname.endsWith('/{name}.html') && document.readyState === 'complete'")


def test_each_symptom_is_two_clicks_away(browser):
    for page in SYMPTOMS.values():
        show(browser, "index")
        browser.evaluate(CLICK % (".md-tabs__link", "symptoms"))
        browser.wait("location.pathname.endsWith('/symptoms.html') && document.readyState === 'complete'")
        browser.evaluate(CLICK % (".md-content a", page))
        browser.wait(f"location.pathname.endsWith('/{page}.html')")


def test_each_symptom_is_the_first_hit_of_the_search(browser):
    found = {}
    for words in SYMPTOMS:
        show(browser, "index")
        browser.evaluate("document.querySelector('.md-search__input').focus()")
        browser.press(*words)
        browser.wait("document.querySelector('.md-search-result__item a')")
        browser.wait("document.querySelector('.md-search-result__meta').innerText.match(/match/)")
        time.sleep(0.2)  # the hits of the last letter
        found[words] = browser.evaluate("document.querySelector('.md-search-result__item a').pathname.split('/site/')[1]")
    assert not [url for url in browser.requests if not url.startswith(("file:", "data:", "blob:", "about:"))]
    assert found == {words: f"{page}.html" for words, page in SYMPTOMS.items()}


def test_head_and_first_column_of_a_wide_table_stay(browser):
    show(browser, "world")
    browser.wait("document.querySelector('.md-typeset__scrollwrap')")
    browser.evaluate("document.querySelector('.md-typeset__scrollwrap').scrollTo({left: 400, top: 300, behavior: 'instant'})")
    browser.wait("document.querySelector('.md-typeset__scrollwrap').scrollLeft === 400")
    inside = "document.querySelector('.md-typeset__scrollwrap %s').getBoundingClientRect()"
    around = "document.querySelector('.md-typeset__scrollwrap').getBoundingClientRect()"
    assert abs(browser.evaluate(f"{inside % 'tbody td'}.left - {around}.left")) < 20
    assert abs(browser.evaluate(f"{inside % 'thead th:nth-child(3)'}.top - {around}.top")) < 20


@pytest.mark.parametrize("width", [390, 1500])
def test_no_table_is_wider_than_its_column_without_a_scrollbar_of_its_own(browser, width):
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    for name in PAGES:
        show(browser, name)
        browser.wait("document.querySelectorAll('.md-typeset__scrollwrap').length || !document.querySelector('table')")
        assert browser.evaluate(UNWRAPPED) == 0, name
        assert browser.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name
    browser.call("Emulation.clearDeviceMetricsOverride")
