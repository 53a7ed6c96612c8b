"""Draws docs/figures/layers.svg and states.svg from what the program itself obeys.

The layers are those of import-linter's contract in pyproject.toml, with the first line of every module's docstring; the
states are `bdfl.protocol.state.MOVES`. Plain SVG, written by hand, so that the same program gives the same bytes.

`make diagrams`, or from the root of the repository: python -m docs.figures.make_diagrams
"""

import ast
import math
import textwrap
import tomllib
from html import escape
from pathlib import Path

from bdfl.protocol.state import MOVES, Phase

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
INK, SOFT_INK, LINE = "#222222", "#5d5d5d", "#9a9a9a"
PURE, OUTER, PAPER = "#e3eef8", "#f6ecdf", "#ffffff"
FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', 'Noto Sans', sans-serif"
WIDTH = 860


def draw_layers() -> str:
    """All layers, the outermost on top, each with what it is; those of the pure core in another colour."""
    contracts = {one["id"]: one for one in _settings()["tool"]["importlinter"]["contracts"]}
    pure = {name.split(".")[1] for name in contracts["pure-core"]["source_modules"]}
    wholly = {name.split(".")[1] for name in contracts["pure-core"]["source_modules"] if name.count(".") == 1}
    parts, top, height, gap = [], 44.0, 32.0, 6.0
    for layer in contracts["layers"]["layers"]:
        names = [name.strip() for name in layer.split("|")]
        width = (WIDTH - 32 - gap * (len(names) - 1)) / len(names)
        rows = 1 if len(names) == 1 else 2
        for place, name in enumerate(names):
            left = 16 + place * (width + gap)
            fill = PURE if name in wholly else "url(#partly)" if name in pure else OUTER
            parts.append(_box(left, top, width, height * rows, fill))
            parts.append(_text(left + 10, top + 21, name, weight="600"))
            what = _first_line(name)
            if rows == 1:
                parts.append(_text(left + 128, top + 21, _cut(what, 106), size=11.5, colour=SOFT_INK))
            else:
                for number, line in enumerate(textwrap.wrap(what, int(width / 6.1))[:2]):
                    parts.append(_text(left + 10, top + 38 + 14 * number, line, size=11, colour=SOFT_INK))
        top += height * rows + gap
    legend = [
        _box(16, top + 8, 18, 14, PURE), _text(40, top + 20, "pure: no clock, socket, process, file", size=11.5),
        _box(376, top + 8, 18, 14, "url(#partly)"), _text(400, top + 20, "in part", size=11.5),
        _box(476, top + 8, 18, 14, OUTER), _text(500, top + 20, "the outside: files, screens, networks", size=11.5),
    ]  # fmt: skip
    heading = _text(16, 28, "A module imports only what stands below it", weight="600", size=14)
    return _document(top + 36, [heading, *parts, *legend], "The layers of bdfl, from the command line down to arrays")


def draw_states() -> str:
    """The phases of a node and its moves, each with the number under which the reason stands below."""
    middle_x, middle_y, radius_x, radius_y = WIDTH / 2, 190.0, 270.0, 130.0
    phases = list(Phase)
    angle = {phase: math.pi + 2 * math.pi * number / len(phases) for number, phase in enumerate(phases)}
    place = {
        phase: (middle_x + radius_x * math.cos(turn), middle_y + radius_y * math.sin(turn))
        for phase, turn in angle.items()
    }
    arrows, marks, reasons = [], [], []
    moves = [(before, after, why) for before, targets in MOVES.items() for after, why in targets.items()]
    for number, (before, after, why) in enumerate(moves, start=1):
        arrow, (x, y) = _loop(place[before]) if before is after else _arrow(place[before], place[after])
        arrows.append(arrow)
        marks.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="11" fill="{PAPER}" stroke="{LINE}"/>')
        marks.append(_text(x, y + 4, str(number), size=11, anchor="middle"))
        said = f"{number}  {before} → {after}: {why}"
        reasons.append(_text(WIDTH / 2 - 250, 388 + 20 * (number - 1), said, size=12))
    boxes = []
    for phase, (x, y) in place.items():
        boxes.append(_box(x - 58, y - 20, 116, 40, PURE))
        boxes.append(_text(x, y + 5, phase.value, weight="600", size=14, anchor="middle"))
    start_x, start_y = place[phases[0]]
    arrows.append(_line(start_x - 96, start_y + 62, start_x - 40, start_y + 24))
    boxes.append(f'<circle cx="{start_x - 99:.1f}" cy="{start_y + 64:.1f}" r="6" fill="{INK}"/>')
    boxes.append(_text(start_x - 104, start_y + 88, "started", size=11.5, colour=SOFT_INK, anchor="middle"))
    height = 388 + 20 * len(moves)
    return _document(height, [*arrows, *boxes, *marks, *reasons], "The states of a node and its moves between them")


DIAGRAMS = {"layers.svg": draw_layers, "states.svg": draw_states}


def _settings() -> dict:  # type: ignore[type-arg]
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _first_line(name: str) -> str:
    """What the module says it is."""
    package = ROOT / "src" / "bdfl" / name
    path = package / "__init__.py" if package.is_dir() else package.with_suffix(".py")
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return said.splitlines()[0].replace("`", "").rstrip(".") if said else ""


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: text.rfind(" ", 0, most - 1)].rstrip(",;:") + " …"


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> tuple[str, tuple[float, float]]:
    """A bow to the right of the way from box to box, and where its number goes."""
    (x1, y1), (x2, y2) = start, end
    length = math.hypot(x2 - x1, y2 - y1)
    bend = 34.0
    control = ((x1 + x2) / 2 - (y2 - y1) / length * bend, (y1 + y2) / 2 + (x2 - x1) / length * bend)
    from_x, from_y = _edge(start, control)
    to_x, to_y = _edge(end, control)
    share = 0.36  # of the way: bows cross in the middle
    at = tuple(
        (1 - share) ** 2 * a + 2 * share * (1 - share) * c + share**2 * b
        for a, c, b in zip((from_x, from_y), control, (to_x, to_y), strict=True)
    )
    way = f"M{from_x:.1f},{from_y:.1f} Q{control[0]:.1f},{control[1]:.1f} {to_x:.1f},{to_y:.1f}"
    return f'<path d="{way}" fill="none" stroke="{INK}" stroke-width="1.2" marker-end="url(#head)"/>', (at[0], at[1])


def _loop(at: tuple[float, float]) -> tuple[str, tuple[float, float]]:
    """A way from a box back to itself, above it."""
    x, y = at
    way = f"M{x - 34:.1f},{y - 21:.1f} C{x - 60:.1f},{y - 84:.1f} {x + 10:.1f},{y - 84:.1f} {x - 8:.1f},{y - 23:.1f}"
    return f'<path d="{way}" fill="none" stroke="{INK}" stroke-width="1.2" marker-end="url(#head)"/>', (x - 26, y - 70)


def _edge(box: tuple[float, float], towards: tuple[float, float]) -> tuple[float, float]:
    """Where the way from a box's middle leaves it."""
    (x, y), (to_x, to_y) = box, towards
    share = min(61 / abs(to_x - x) if to_x != x else math.inf, 23 / abs(to_y - y) if to_y != y else math.inf)
    return x + (to_x - x) * share, y + (to_y - y) * share


def _box(left: float, top: float, width: float, height: float, fill: str) -> str:
    place = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} rx="5" fill="{fill}" stroke="{LINE}" stroke-width="0.8"/>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{INK}" stroke-width="1.2" '
        'marker-end="url(#head)"/>'
    )


def _text(
    x: float, y: float, text: str, *, size: float = 13, weight: str = "400", colour: str = INK, anchor: str = "start"
) -> str:
    look = f'font-size="{size}" font-weight="{weight}" fill="{colour}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(text)}</text>'


def _document(height: float, parts: list[str], title: str) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" font-family="{FONT}">'
        f"\n<title>{escape(title)}</title>\n<defs>"
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker>'
        '<linearGradient id="partly" x1="0" x2="1" y1="0" y2="0">'
        f'<stop offset="0.5" stop-color="{PURE}"/><stop offset="0.5" stop-color="{OUTER}"/></linearGradient></defs>'
        f'\n<rect width="{WIDTH}" height="{height:.0f}" fill="{PAPER}"/>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"


def draw_diagram() -> str:
    """Mermaid text of the phases of a node and why it goes from one to another."""
    lines = ["stateDiagram-v2", f"    [*] --> {Phase.COLLECTING}: started, or started again from its store"]
    for phase, moves in MOVES.items():
        lines += [f"    {phase} --> {after}: {why.replace(':', ',')}" for after, why in moves.items()]
    lines.append(f"    {Phase.DONE} --> [*]")
    return "\n".join(lines)


if __name__ == "__main__":
    for name, draw in DIAGRAMS.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
        print(f"wrote {FOLDER / name}")
