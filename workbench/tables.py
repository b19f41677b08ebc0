"""Tables as text: Markdown, CSV, LaTeX and HTML. The frame's index is never printed; `report.write_tables` writes them.

In every format text stays as it is (a label "0.10" is printed 0.10), whole numbers are printed whole, floats with six
significant digits and no trailing zeros, and missing values as an empty cell.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection
from html import escape
from types import SimpleNamespace
from typing import Any

import pandas as pd

__all__ = ["p_value", "percent", "table_files", "to_csv", "to_html", "to_latex", "to_markdown"]

_MARKDOWN = re.compile(r"([\\`*_\[\]<>|~$&])")
_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    # After the end of a row, these would be read as its option and its star.
    "[": "{[}", "*": "{*}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "←": r"$\leftarrow$", "→": r"$\rightarrow$", "×": r"$\times$", "−": r"$-$", "·": r"$\cdot$",
    "≤": r"$\leq$", "≥": r"$\geq$",
    **{mark: "\\" + mark for mark in "&%$#_{}"},
}  # fmt: skip

_STYLE = (
    "body { margin: 1rem; font: 0.9rem/1.4 system-ui, sans-serif; } "
    "table { border-collapse: collapse; width: max-content; border-top: 2px solid; border-bottom: 2px solid; } "
    "caption { text-align: left; padding-bottom: 0.4rem; } thead { border-bottom: 1px solid; } "
    "th, td { padding: 0.2rem 0.6rem; text-align: left; vertical-align: baseline; max-width: 26rem; } "
    ".number { text-align: right; font-variant-numeric: tabular-nums; }"
)


def percent(x: float) -> str:
    """A share as a percentage with one decimal, two below 1%; more where these would round to 0% or 100%; NaN is "".

    >>> [percent(x) for x in (1, 0.356, 0.99975, 0.0019, 0)]
    ['100%', '35.6%', '99.98%', '0.19%', '0%']
    """
    if pd.isna(x):
        return ""
    if abs(x) < 1e-12:
        x = 0.0
    if x in (-1, 0, 1):
        return f"{100 * int(x)}%"
    for decimals in range(1 if abs(x) >= 0.01 else 2, 12):
        text = f"{100 * x:.{decimals}f}"
        if float(text) not in (-100, 0, 100):
            break
    return f"{text}%"


def p_value(p: float) -> str:
    """A p-value with two digits, more where these would take it to the other side of 0.05; one that is too small for a
    float is said to be below 1e-300.

    >>> [p_value(p) for p in (0.04321, 0.0496, 1.0, 0.0)]
    ['0.043', '0.0496', '1', 'below 1e-300']
    """
    if p < 1e-300:
        return "below 1e-300"
    texts = (f"{p:.{digits}g}" for digits in range(2, 18))
    return next(text for text in texts if (float(text) < 0.05) == (p < 0.05))


def table_files(
    name: str, frame: pd.DataFrame, *, printed: pd.DataFrame | None = None, right: Collection[str] = (), title: str = ""
) -> dict[str, str]:
    """A table in all four formats, by file name: NAME.csv, NAME.md, NAME.tex (booktabs) and NAME.html.

    printed: what those that are read, not computed with, say instead of `frame`: percentages, say. right: columns of
    words to be aligned right. title: what the HTML says above the table.

    >>> list(table_files("means", pd.DataFrame({"condition": ["clean"], "accuracy": [0.5]})))
    ['means.csv', 'means.md', 'means.tex', 'means.html']
    """
    shown = frame if printed is None else printed
    return {
        f"{name}.csv": to_csv(frame),
        f"{name}.md": to_markdown(shown, right),
        f"{name}.tex": to_latex(shown, right),
        f"{name}.html": to_html(shown, right, title=title),
    }


def to_markdown(frame: pd.DataFrame, right: Collection[str] = ()) -> str:
    """A GitHub table; numeric columns, and those named in `right`, are aligned right. What Markdown would read as
    markup is escaped.

    >>> print(to_markdown(pd.DataFrame({"condition": ["a|b"], "accuracy": [0.5]})))
    | condition | accuracy |
    | --- | ---: |
    | a\\|b | 0.5 |
    """
    rule = ["---:" if numeric else "---" for numeric in _numeric(frame, right)]
    lines = [[markdown_text(str(column)) for column in frame.columns], rule]
    lines += [[markdown_text(cell) for cell in row] for row in _rows(frame)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def to_csv(frame: pd.DataFrame) -> str:
    """Comma-separated text, every line ending in a line feed, quoted only where needed.

    >>> to_csv(pd.DataFrame({"label": ["0.10", "a,b"], "share": [0.1, 2 / 3]}))
    'label,share\\n0.10,0.1\\n"a,b",0.666667\\n'
    """
    lines: list[str] = []
    # The writer quotes cells that hold characters of its line end: with "\r\n", a carriage return too.
    writer = csv.writer(SimpleNamespace(write=lines.append), lineterminator="\r\n")
    writer.writerow(map(str, frame.columns))
    writer.writerows(_rows(frame))
    return "".join(line.removesuffix("\r\n") + "\n" for line in lines)


def to_latex(frame: pd.DataFrame, right: Collection[str] = ()) -> str:
    """A `tabular` for the booktabs package; numeric columns, and those named in `right`, are aligned right.

    >>> print(to_latex(pd.DataFrame({"condition": ["a_b"], "accuracy": [0.5]})))
    \\begin{tabular}{lr}
    \\toprule
    condition & accuracy \\\\
    \\midrule
    a\\_b & 0.5 \\\\
    \\bottomrule
    \\end{tabular}
    """
    columns = "".join("r" if numeric else "l" for numeric in _numeric(frame, right))
    lines = [[_latex(cell) for cell in row] for row in [list(map(str, frame.columns)), *_rows(frame)]]
    header, *body = [" & ".join(line) + r" \\" for line in lines]
    rows = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", header, r"\midrule", *body, r"\bottomrule"]
    return "\n".join([*rows, r"\end{tabular}"])


def to_html(frame: pd.DataFrame, right: Collection[str] = (), *, title: str = "") -> str:
    """A page with the table in it, that opens without a network; numeric columns, and those named in `right`, are
    aligned right.

    >>> page = to_html(pd.DataFrame({"condition": ["a < b"], "accuracy": [0.5]}))
    >>> '<td>a &lt; b</td><td class="number">0.5</td>' in page
    True
    """
    looks = [' class="number"' if numeric else "" for numeric in _numeric(frame, right)]
    heads = "".join(f"<th{look}>{_html(str(name))}</th>" for name, look in zip(frame.columns, looks, strict=True))
    cells = [[f"<td{look}>{_html(cell)}</td>" for cell, look in zip(row, looks, strict=True)] for row in _rows(frame)]
    rows = "\n".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    caption = f"<caption>{_html(title)}</caption>\n" if title else ""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{_html(title or "table")}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<table>\n{caption}<thead>\n<tr>{heads}</tr>\n</thead>\n"
        f"<tbody>\n{rows}\n</tbody>\n</table>\n</body>\n</html>"
    )


def _numeric(frame: pd.DataFrame, right: Collection[str]) -> list[bool]:
    kinds = [(str(name), column.dtype) for name, column in frame.items()]
    return [
        name in right or (pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind))
        for name, kind in kinds
    ]


def _html(text: str) -> str:
    return "<br>".join(escape(line) for line in re.split(r"\r\n|\r|\n", text))


def _rows(frame: pd.DataFrame) -> list[list[str]]:
    columns = [[_text(value) for value in column] for _, column in frame.items()]
    return [list(row) for row in zip(*columns, strict=True)]


def _text(value: Any) -> str:
    if pd.isna(value):
        return ""
    # Adding 0.0 turns −0 into 0.
    return f"{float(value) + 0.0:.6g}" if pd.api.types.is_float(value) else str(value)


def markdown_text(text: str) -> str:
    """Text that Markdown shows as it is: nothing in it becomes markup, and it stays on its line.

    >>> print(markdown_text("a|b <i>"))
    a\\|b \\<i\\>
    """
    return re.sub(r"\r\n|\r|\n", "<br>", _MARKDOWN.sub(r"\\\1", text))


def _latex(text: str) -> str:
    return "".join(_LATEX.get(mark, mark) for mark in " ".join(text.splitlines()))
