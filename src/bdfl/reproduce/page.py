"""A reproduction as one self-contained HTML page: changes, numbers, curves, verdicts and runs."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from bdfl.report.style import Picture, Sheet
from bdfl.reproduce.results import Cell, NumberTable, Reproduction, Verdict

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0 2rem; font-size: 0.9rem; display: block; overflow-x: auto; }
caption { text-align: left; font-weight: bold; padding-bottom: 0.3rem; }
th, td { padding: 0.2rem 0.9rem 0.2rem 0; text-align: right; border-bottom: 1px solid #e4e4e4; }
th.word, td.word { text-align: left; }
.fails { color: #b2182b; font-weight: bold; }
.notes { background: #fff6e0; padding: 0.6rem 1rem; }
svg { width: 100%; height: auto; }
"""


def write_page(found: Reproduction, picture: Picture, provenance: Sheet, path: Path) -> Path:
    """Write one self-contained HTML file and return its path."""
    title = "Table IV of the paper, trained"
    svg = picture.svg.decode()
    parts = [
        f"<h1>{title}</h1>",
        _notes(found.notes),
        *(_table(table) for table in found.tables),
        "<h2>Accuracy against simulated time and rounds</h2>",
        svg[svg.index("<svg") :],
        _verdicts(found.verdicts),
        f"<p>Calibrated, not in the paper: {escape(', '.join(found.calibrated))}.</p>",
        _table(NumberTable("runs", "Runs", list(provenance.header), [list(row) for row in provenance.rows])),
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    page = f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body>\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page + "\n".join(parts) + "\n</body></html>\n", encoding="utf-8")
    return path


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return "<p>Nothing was shortened or changed.</p>"
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<div class="notes"><strong>Not as in the paper:</strong><ul>{items}</ul></div>'


def _table(table: NumberTable) -> str:
    words = [isinstance(cell, str) for cell in table.rows[0]]
    head = "".join(_cell("th", name, word) for name, word in zip(table.header, words, strict=True))
    body = "".join(
        "<tr>" + "".join(_cell("td", _text(cell), word) for cell, word in zip(row, words, strict=True)) + "</tr>"
        for row in table.rows
    )
    return f"<table><caption>{escape(table.title)}</caption><tr>{head}</tr>{body}</table>"


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    words = {True: '<td class="word">holds</td>', False: '<td class="word fails">FAILS</td>'}
    rows = "".join(
        f"<tr>{words[verdict.holds]}{_cell('td', verdict.claim, True)}{_cell('td', verdict.found, True)}</tr>"
        for verdict in verdicts
    )
    return f"<table><caption>Verdicts</caption>{rows}</table>"


def _cell(tag: str, text: str, word: bool) -> str:
    kind = ' class="word"' if word else ""  # not inline: Python 3.11 does not allow the same quotes inside an f-string
    return f"<{tag}{kind}>{escape(text)}</{tag}>"


def _text(cell: Cell) -> str:
    if cell is None or (isinstance(cell, float) and np.isnan(cell)):
        return "-"
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)
