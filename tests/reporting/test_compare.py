"""Two pages of reports, compared."""

import dataclasses

import pytest

from gradc.errors import ConfigError
from gradc.reporting.compare import compare
from gradc.reporting.page import page_of
from tests.reporting.synthetic import synthetic


def test_two_pages_are_compared(tmp_path):
    first = synthetic(20)
    slower = dataclasses.replace(first.times, eager=1.5, compiled=3e-3, compiled_spread=(2e-3, 4e-3))
    for name, report in (("a", first), ("b", dataclasses.replace(first, times=slower, notes=("The machine was busy.",)))):
        (tmp_path / name).write_text(page_of(report))
    text = compare(str(tmp_path / "a"), str(tmp_path / "b"))
    rows = {line[:24].strip(): line[24:].split() for line in text.splitlines()}
    assert rows["compiled ms"] == ["1", "3", "3.00"] and rows["eager ms"] == ["2", "1500", "750.00"]
    assert rows["graph breaks"] == ["1", "1", "1.00"] and "2 to 4" in text
    assert text.splitlines()[2] == "B: The machine was busy."


def test_another_file_is_no_page(tmp_path):
    (tmp_path / "a").write_text("<p>")
    with pytest.raises(ConfigError, match="is no page that gradc report wrote"):
        compare(str(tmp_path / "a"), str(tmp_path / "a"))


def test_a_notebook_shows_it_in_a_frame_and_in_a_line(tmp_path):
    report = dataclasses.replace(synthetic(2000), path="r.html")
    assert len(repr(report)) < 200 and '<iframe src="r.html"' in report._repr_html_() and len(report._repr_html_()) < 1000
    assert "<table>" in report.explanation._repr_html_() and len(repr(report.explanation)) < 100
    assert "<pre" in report.parity._repr_html_() and repr(report.parity).startswith("<Report: 12 values compared")
