"""A report as one page of HTML that needs no network: the texts of ``page_files`` around the report's data.

    page_of: StepReport -> HTML

What stands more than once, as the name of an op does, is written once and then by its number: ten thousand ops are 2 MB. The
charts are drawn by plotly, which the page carries within it; the rest is plain HTML that the page makes as it is opened.
"""

from __future__ import annotations

import html
import importlib.util
import json
import math
from collections.abc import Hashable
from importlib.resources import files
from pathlib import Path
from typing import Any

from gradc.errors import GradcError
from gradc.reporting.model import Curve, Line, Op, StepReport, Value

_SCRIPTS = ("data.js", "tree.js", "search.js", "panels.js", "charts.js", "start.js")


def require_plotly() -> None:
    """
    Raises:
        GradcError: if plotly, which draws the charts, is not installed.
    """
    if importlib.util.find_spec("plotly") is None:
        raise GradcError("gradc.report draws with plotly, which is not installed.\n  Run: pip install 'plotly>=6'")


def page_of(report: StepReport) -> str:
    """The whole page.

    Raises:
        GradcError: if plotly is not installed.
    """
    require_plotly()
    from plotly.offline import get_plotlyjs

    parts = {
        "TITLE": html.escape(report.title),
        "STYLE": _text("page.css"),
        "DATA": _in_script(json.dumps(_finite(_data(report)), separators=(",", ":"), allow_nan=False)),
        "SCRIPT": "\n".join(map(_text, _SCRIPTS)),
        "PLOTLY": get_plotlyjs().replace("</script", "<\\/script"),
    }
    pieces = _text("page.html").split("@@")  # every other piece is a name
    return "".join(parts[piece] if position % 2 else piece for position, piece in enumerate(pieces))


def _text(name: str) -> str:
    return files("gradc.reporting").joinpath("page_files", name).read_text(encoding="utf-8")


def _in_script(text: str) -> str:
    """JSON that can stand in a script element, whatever its strings hold."""
    return text.replace("<", "\\u003c")


def _finite(value: Any) -> Any:
    """None for an infinity or a NaN, as a largest difference may be: JSON has none."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _Table:
    """Things that stand more than once: each gets a number when it is first met."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable, row: Any) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self.rows)
            self.rows.append(row)
        return self._numbers[key]


def _data(report: StepReport) -> dict[str, Any]:
    """What ``data.js`` reads."""
    whole = report.to_dict()
    names, lines, values = _Table(), _Table(), _Table()

    def number_of_value(graph: int, value: Value) -> int:
        row = [value.name, names.number(value.dtype, value.dtype), list(value.shape), value.num_bytes, value.label]
        return values.number((graph, value.name), row)

    def row(op: Op) -> list[Any]:
        texts = [names.number(text, text) for text in (op.name, op.module, op.node, op.autocast)]
        line = -1 if op.line is None else lines.number(op.line, _line(op.line))
        tensors = [[number_of_value(op.graph, value) for value in group] for group in (op.made, op.read)]
        times = [_short(op.seconds), _short(op.eager_seconds), op.num_calls]
        return [op.graph, *texts, line, *tensors, *times, list(op.partners)]

    ops = [row(op) for op in report.ops]
    names_kept = ("title", "versions", "num_steps", "graphs", "times", "explanation", "parity", "notes", "made")
    kept = {name: whole[name] for name in names_kept}
    curves = {"memory": _curve(report.memory), "eager_memory": _curve(report.eager_memory)}
    return kept | curves | {"ops": ops, "names": names.rows, "lines": lines.rows, "values": values.rows}


def _curve(curve: Curve) -> dict[str, Any]:
    return {
        "seconds": [*map(_short, curve.seconds)],
        "places": [round(place, 2) for place in curve.places],
        "num_bytes": {role.value: series for role, series in curve.num_bytes.items()},
        "ops": curve.ops,
        "phases": [phase.value for phase in curve.phases],
        "peak": curve.peak,
        "peak_bytes": curve.peak_bytes,
        "alive": [[each.name, each.role.value, each.num_bytes, each.op, _line(each.line)] for each in curve.alive],
    }


def _line(line: Line | None) -> list[Any] | None:
    """A file in the working directory by its path from there, as in what one types."""
    if line is None:
        return None
    path = Path(line.path)
    short = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return [str(short), line.number, line.function, line.code]


def _short(seconds: float | None) -> float | None:
    """Nanoseconds are enough."""
    return None if seconds is None else round(seconds, 9)
