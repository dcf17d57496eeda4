"""What to do about a part that ran eagerly, as docs/reasons.md has it, by the name under which the part is counted.

    cure_of: (name, detail) -> a sentence, or "" where there is nothing to do

The page is a part of the package: ``reasons.md`` here is a link to it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

_PAGE = Path(__file__).with_name("reasons.md")
_NOTHING, _THE_SAME, _AS_THE_DETAIL = "Nothing.", "The same.", "As the detail says."
_LINK_TO_PAGE, _LINK = re.compile(r"\[[^\]]+\]\(([\w/.-]+\.md)[^)]*\)"), re.compile(r"\[([^\]]+)\]\([^)]+\)")
_ERROR = re.compile(r"\w*(Error|Exception|Warning|Interrupt|Iteration)\b")


def cure_of(name: str, detail: str = "") -> str:
    """See the module's docstring."""
    cure = _cures().get(_general(name), "")
    if cure == _AS_THE_DETAIL:
        return cure_of(detail.split(":")[0])
    return "" if cure == _NOTHING else cure


@functools.cache
def _cures() -> dict[str, str]:
    return {_general(name): cure for name, cure in _rows(_PAGE.read_text(encoding="utf-8"))}


def _rows(page: str) -> Iterator[tuple[str, str]]:
    before = ""
    for line in page.splitlines():
        if line.startswith("| `"):
            names, _, cure = (cell.strip() for cell in line.strip("| ").split(" | "))
            before = before if cure == _THE_SAME else _LINK.sub(r"\1", _LINK_TO_PAGE.sub(r"docs/\1", cure))
            yield from ((name, before) for name in re.findall("`([^`]+)`", names))


def _general(name: str) -> str:
    """The page has one type of error for all."""
    return _ERROR.sub("RuntimeError", name)
