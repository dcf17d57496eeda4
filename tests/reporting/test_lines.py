"""Lines of the user's, in both forms in which the rooms write them down."""

from gradc.reporting.lines import line_of, place_of
from gradc.reporting.model import Line


def test_both_forms():
    line = Line("/home/a b/x.py", 3, "step", "y = {1: x}[1]  # in here: yes")
    assert line_of("File: /home/a b/x.py:3 in step, code: y = {1: x}[1]  # in here: yes") == line
    assert line_of("/home/a b/x.py:3 in step: y = {1: x}[1]  # in here: yes") == line
    assert str(line) == "/home/a b/x.py:3 in step: y = {1: x}[1]  # in here: yes"
    assert place_of(str(line)) == "/home/a b/x.py:3"


def test_no_line():
    assert line_of("") is None and place_of("autocast") == ""
