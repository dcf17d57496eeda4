"""The page of a report as a person meets it: in a real browser, with mouse and keyboard, at 50, 1,000 and 10,000 ops."""

import dataclasses

import pytest

from gradc.reporting.model import Curve
from gradc.reporting.page import page_of
from tests.reporting.chromium import PROGRAM, Page
from tests.reporting.synthetic import SHARP, synthetic

pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium on PATH, nor in CHROMIUM: apt-get install chromium; test_page.py runs without"
)
SIZES = (50, 1_000, 10_000)
MOST_SECONDS = 2.0
SHOWN = "[...document.querySelectorAll('%s .op')].filter(each => each.checkVisibility()).length"


@pytest.fixture(scope="module")
def browser():
    with Page() as page:
        yield page


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for size in SIZES:
        (folder / f"{size}.html").write_text(page_of(synthetic(size)))
    (folder / "flat.html").write_text(page_of(synthetic(10_000, has_modules=False)))
    return folder


@pytest.fixture
def page(browser, files):
    browser.open(files / "50.html")
    yield browser
    assert browser.problems == []


@pytest.mark.parametrize("name", [*map(str, SIZES), "flat"])
def test_it_opens_at_once_and_loads_nothing(browser, files, name):
    seconds = browser.open(files / f"{name}.html")
    assert browser.problems == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:", "blob:"))] == [] and browser.requests
    assert seconds < MOST_SECONDS, f"{seconds} s"
    assert browser.number(".op") < 250  # the rest is made when it is looked at


@pytest.mark.parametrize("size", SIZES)
def test_search(browser, files, size):
    browser.open(files / f"{size}.html")
    browser.press("/")
    assert browser.focused() == "search"
    browser.press(*"gelu")
    number = sum(op.name == "aten.gelu.default" for op in synthetic(size).ops)
    browser.wait(f"document.getElementById('found').innerText.startsWith('{number:,} op')")
    assert browser.number("#results tbody tr") == min(number, 200)
    browser.click("#results tbody tr:last-child button")
    assert "aten.gelu.default" in browser.text("#detail")
    assert browser.number(".op[aria-current='true']") == 1 and "gelu" in browser.focused()
    browser.evaluate("document.getElementById('search').focus()")
    browser.press("Escape")
    browser.wait("document.getElementById('results').hidden")
    assert browser.problems == []


def test_search_that_finds_nothing_says_so(page):
    page.press("/", *"nowhere")
    page.wait("document.getElementById('found').innerText.startsWith('0 ops')")
    assert "Nothing found" in page.text("#results")


@pytest.mark.parametrize("size", SIZES)
def test_groups_open_and_close_by_click(browser, files, size):
    browser.open(files / f"{size}.html")
    assert browser.evaluate(SHOWN % "#forward") == 0
    for _ in range(4):  # the first group that is closed, the first in that, and so on, down to the ops
        opened = browser.number("#forward details[open]")
        browser.click("#forward details:not([open]) > summary")
        browser.wait(f"document.querySelectorAll('#forward details[open]').length === {opened + 1}")
        if browser.evaluate(SHOWN % "#forward"):
            break
    assert 0 < browser.evaluate(SHOWN % "#forward") < 20
    browser.click("#forward summary")
    browser.wait("!document.querySelector('#forward details').open")
    assert browser.evaluate(SHOWN % "#forward") == 0 and browser.problems == []


def test_keyboard_alone(page):
    """From the top of the tree to an op, to its gradient, and back to the group around it."""
    page.evaluate("document.querySelector('#forward summary').focus()")
    page.press("ArrowRight")
    assert "blocks" in page.focused()
    for _ in range(10):
        page.press("ArrowRight")
        if page.evaluate("document.activeElement.classList.contains('op')"):
            break
    assert page.focused().startswith("mm")
    page.press("Enter")
    page.wait("document.activeElement.getAttribute('aria-current') === 'true'")
    assert "aten.mm.default" in page.text("#detail") and "x = x @ w0" in page.text("#detail")
    assert page.number("#backward .op.partner") == 1
    page.press("ArrowDown")
    assert not page.focused().startswith("mm")
    page.press("ArrowLeft")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    page.press("ArrowLeft", "ArrowDown")  # closed: its ops are passed over
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY" and page.evaluate(SHOWN % "#forward") == 0
    page.press("Home")
    assert page.focused().startswith("region 0")


def test_from_an_op_to_its_gradient(page):
    page.press("/", *"value_3")
    page.wait("document.querySelector('#results tbody button')")
    page.click("#results tbody button")
    assert "Its gradient" in page.text("#detail")
    page.click("#detail h4 + ul button")
    assert "The gradient of" in page.text("#detail") and "MmBackward0" in page.text("#detail")
    assert page.number("#forward .op.partner") == 1


def test_which_ops_of_backward_ran_in_bfloat16(page):
    page.click("#dtype-card h4:nth-of-type(2) + fieldset button")
    ops = [op for op in synthetic(50).ops[25:] if op.made[0].dtype == "bfloat16"]
    page.wait(f"document.getElementById('found').innerText.startsWith('{len(ops)} ops')")
    assert page.evaluate("document.getElementById('phase').value") == "backward"
    assert page.number("#results tbody tr") == len(ops)
    assert page.evaluate("document.querySelector('#dtypes [aria-pressed=true]').textContent") == "bfloat16"
    page.click("#filters button[type=reset]")
    page.wait("document.getElementById('results').hidden")


def test_what_is_alive_at_the_peak_and_what_was_captured_again(page):
    assert f"kept by {SHARP}" in page.text("#alive") and "made by forward" in page.text("#alive")
    assert "region 0: autocast was off, is on" in page.text("#captures")
    assert "print was called" in page.text("#captures") and "Leave it out." in page.text("#captures")
    assert "12 values compared in 1 step: all equal eager, bit for bit." in page.text("#parity")


@pytest.mark.parametrize("section", ["time", "captures"])
def test_from_a_graph_to_the_program_that_was_generated(page, section):
    page.evaluate("document.querySelectorAll('.program').forEach(each => {each.open = false})")
    page.click(f"#{section} a[href='#program-1']")
    page.wait("document.querySelector('#program-1 pre')?.checkVisibility()")
    assert page.text("#program-1 pre") == synthetic(50).graphs[1].program
    assert page.number("#program-0 pre") == 0  # made when it is opened
    page.wait("Math.abs(document.getElementById('program-1').getBoundingClientRect().top) < innerHeight")


def test_the_summary_is_copied_as_markdown(page):
    page.click("#copy")
    assert page.text("#copy") == "Copied"
    copied = page.evaluate("document.getElementById('markdown').value")
    assert "|  | eager | compiled |" in copied and "| whole step | 2.00 ms | 1.00 ms |" in copied
    assert "- graph break: print was called (File: model.py:3 in step, code: print(x))" in copied


def test_memory_is_drawn_op_by_op(page):
    drawn = page.evaluate("document.getElementById('memory-chart').data.map(each => each.x)")
    assert all(x == list(range(50)) for x in drawn)
    assert page.evaluate("document.querySelector('#memory-chart .xtitle').textContent") == "call by call"


def test_charts_are_drawn(page):
    for chart in ("memory", "flame", "op"):
        assert page.number(f"#{chart}-chart .main-svg") > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(browser, files, scheme):
    browser.open(files / "50.html", scheme)
    brightness = "getComputedStyle(document.body).%s.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0)"
    page, text = (browser.evaluate(brightness % part) for part in ("backgroundColor", "color"))
    assert (page > 600 > 300 > text) if scheme == "light" else (text > 600 > 300 > page)
    assert browser.problems == []


@pytest.mark.parametrize("size", (50, 10_000))
def test_everything_that_can_be_reached_has_a_name(browser, files, size):
    browser.open(files / f"{size}.html")
    browser.evaluate("choose(0, true)")
    spoken = browser.spoken()
    assert len(spoken) > 30
    assert [role for role, name in spoken if not name.strip() and role not in ("RootWebArea", "generic")] == []


def test_a_step_of_which_nothing_was_compiled(browser, tmp_path):
    nothing = Curve((), {}, (), (), 0, ())
    report = dataclasses.replace(synthetic(50), graphs=(), ops=(), memory=nothing, parity=None, notes=("It raised.",))
    (tmp_path / "empty.html").write_text(page_of(report))
    browser.open(tmp_path / "empty.html")
    assert "gradc made no graph of forward" in browser.text("#forward") and "It raised." in browser.text("#cards")
    assert browser.problems == []
