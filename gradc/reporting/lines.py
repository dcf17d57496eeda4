"""Lines of the user's, as the rooms write them down.

line_of: text -> Line         "File: a.py:3 in step, code: y = x @ w", or "a.py:3 in step: y = x @ w"
"""

from __future__ import annotations

import functools
import re

from gradc.reporting.model import Line

_LINE = re.compile(r"(?:File: )?(?P<path>.*?):(?P<number>\d+) in (?P<function>.*?)(?:, code)?: (?P<code>.*)", re.DOTALL)


@functools.lru_cache(maxsize=4096)
def line_of(text: str) -> Line | None:
    """None for text that names no line."""
    found = _LINE.fullmatch(text)
    return found and Line(found["path"], int(found["number"]), found["function"], found["code"])


def place_of(text: str) -> str:
    """The file and the number alone, which forward and backward, eager and compiled, agree on."""
    line = line_of(text)
    return "" if line is None else f"{line.path}:{line.number}"
