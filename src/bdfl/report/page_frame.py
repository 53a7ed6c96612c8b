"""Frame of a self-contained page: its light and dark style sheet, and a strict content security policy."""

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from xml.etree.ElementTree import Element

from bdfl.report.html import document, node
from bdfl.report.style import AXIS, GRID, HOLLOW, INFEASIBLE, INK, MINING, SOFT_INK, TRAINING, UPLOAD

COLOURS = {  # name: (light, dark); figures are drawn in the light colours
    "ink": (INK, "#e8e8ea"),
    "soft": (SOFT_INK, "#a4a7ad"),
    "axis": (AXIS, "#74787f"),
    "grid": (GRID, "#33363c"),
    "hollow": (HOLLOW, "#292d34"),
    "paper": ("#ffffff", "#1d1f24"),
    "blue": (TRAINING, "#4ba3e0"),
    "amber": (UPLOAD, "#e6a92e"),
    "green": (MINING, "#2bb28a"),
    "red": (INFEASIBLE, "#f0717f"),
    "page": ("#f6f7f9", "#131417"),
}


def render_page(title: str, body: Element, styles: str = "") -> str:
    """Return the page as HTML: no script, no font, no external link. `styles` follow the common style sheet."""
    light, dark = ("".join(f"--{name}:{pair[side]};" for name, pair in COLOURS.items()) for side in (0, 1))
    colours = f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
    sheet = colours + files("bdfl.report").joinpath("page.css").read_text(encoding="utf-8") + styles
    allowed = b64encode(sha256(sheet.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{allowed}'; img-src data:; base-uri 'none'; form-action 'none'"
    head = node(
        "head",
        node("meta", attributes={"charset": "utf-8"}),
        node("meta", attributes={"http-equiv": "Content-Security-Policy", "content": policy}),
        node("meta", attributes={"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        node("meta", attributes={"name": "color-scheme", "content": "light dark"}),
        node("title", title),
        node("style", sheet),
    )
    return document(node("html", head, body, attributes={"lang": "en"}))


def card(label: str, value: str, aside: str, *, is_bad: bool = False) -> Element:
    """Return a value with its label above and a remark below."""
    return node(
        "div.card",
        node("dt", label),
        node("dd.value bad" if is_bad else "dd.value", value),
        node("dd.aside", aside),
    )
