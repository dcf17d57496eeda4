"""Lay out rows as a text table, or as Markdown.

    table: (headers, rows of texts) -> str        html_table: the same -> str
"""

from __future__ import annotations

import html
from collections.abc import Sequence


def html_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same for a notebook, scrolling sideways where it is too wide."""
    head = "".join(f"<th>{html.escape(text)}</th>" for text in headers)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f'<div style="overflow-x: auto"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, markdown: bool = False) -> str:
    """First column to the left, the others to the right.

    >>> print(table(["what", "ms"], [["eager", "12.0"], ["gradc", "9.5"]]))
    what     ms
    -----  ----
    eager  12.0
    gradc   9.5
    """
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    if markdown:
        body = [headers, ["---", *["---:"] * (len(headers) - 1)], *rows]
        return "\n".join("| " + " | ".join(row) + " |" for row in body)
    lines = [headers, ["-" * width for width in widths], *rows]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in lines)
