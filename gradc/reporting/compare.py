"""Compare two pages that ``gradc.report`` wrote: times, memory, what ran eagerly, and the ops that changed most.

    compare: (path, path) -> text

Reads what the pages hold. Imports nothing heavy.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from gradc.errors import ConfigError
from gradc.text_table import table

_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)
_MOST_OPS = 8


def compare(first: str, second: str) -> str:
    """
    Raises:
        ConfigError: if one is no such page.
    """
    pages = [_data(first), _data(second)]
    heads = [f"{name}: {page['title']}, {page.get('made', '')}, {page['versions']}" for name, page in zip("AB", pages)]
    notes = [f"{name}: {note}" for name, page in zip("AB", pages) for note in page["notes"]]
    return "\n".join([*heads, *notes, "", table(["", "A", "B", "B of A"], _whole(*pages)), *_ops(*pages)])


def _data(path: str) -> dict[str, Any]:
    found = _DATA.search(Path(path).read_text(encoding="utf-8", errors="replace"))
    if found is None:
        raise ConfigError(f"gradc report --diff: {path} is no page that gradc report wrote.")
    data: dict[str, Any] = json.loads(found[1])
    return data


def _whole(a: dict[str, Any], b: dict[str, Any]) -> list[list[str]]:
    times = (("eager ms", "eager"), ("compiled ms", "compiled"), ("first step ms", "first"))
    rows = [_row(name, *(1000 * page["times"][key] for page in (a, b))) for name, key in times]
    for name, key in (("eager quartiles ms", "eager_spread"), ("compiled quartiles ms", "compiled_spread")):
        rows.append([name, *(" to ".join(_short(1000 * each) for each in page["times"].get(key, ())) for page in (a, b)), ""])
    rows += [_row("most memory at once MB", *(page["memory"]["peak_bytes"] / 1e6 for page in (a, b)))]
    rows += [_row("graphs", *(len(page["graphs"]) for page in (a, b)))]
    for name in ("graph_breaks", "fallbacks", "recaptures"):
        rows.append(_row(name.replace("_", " "), *(len(page["explanation"][name]) for page in (a, b))))
    return rows


def _row(name: str, a: float, b: float) -> list[str]:
    return [name, _short(a), _short(b), f"{b / a:.2f}" if a else ""]


def _short(number: float) -> str:
    """Three digits, or all before the point."""
    return f"{number:.3g}" if number < 1000 else f"{number:.0f}"


def _ops(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Those whose time in graphs changed most."""
    mine, theirs = ({(op["name"], op["phase"]): op["compiled_seconds"] for op in page["times"]["by_op"]} for page in (a, b))
    changes = {key: theirs.get(key, 0.0) - mine.get(key, 0.0) for key in {*mine, *theirs}}
    most = sorted((key for key in changes if changes[key]), key=lambda key: -abs(changes[key]))[:_MOST_OPS]
    rows = [
        [f"{key[0]} ({key[1]})", *(_short(1000 * page.get(key, 0.0)) for page in (mine, theirs))] for key in most
    ]
    return ["", table(["calls of an op, ms", "A", "B"], rows)] if rows else []
