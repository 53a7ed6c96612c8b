"""HTML documents: frame, escaping, figures as inline SVG."""

import re
from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from xml.etree.ElementTree import Element, fromstring, tostring

from bdfl.report.style import AXIS, GRID, HOLLOW, INFEASIBLE, INK, MINING, SOFT_INK, TRAINING, UPLOAD

# HTML as a tree of nodes; all text is escaped when the document is written.

_NEVER_SHOWN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_NOTHING: Mapping[str, str] = {}

Child = Element | str


def node(kind: str, *children: Child, attributes: Mapping[str, str] = _NOTHING) -> Element:
    """Return an element with its children in order; `kind` is its tag, and its class after a dot."""
    tag, _, class_name = kind.partition(".")
    element = Element(tag, {name: printable(value) for name, value in attributes.items()})
    if class_name:
        element.set("class", class_name)
    last: Element | None = None
    for child in children:
        if isinstance(child, Element):
            element.append(child)
            last = child
        elif last is None:
            element.text = (element.text or "") + printable(child)
        else:
            last.tail = (last.tail or "") + printable(child)
    return element


def table_node(
    caption: str, columns: Sequence[str], rows: Sequence[Sequence[Child]], *, words: Collection[int] = (0,)
) -> Element:
    """Return a table whose first column names its rows; the columns at `words` hold text, the others numbers."""
    kinds = ["words" if place in words else "number" for place in range(len(columns))]
    head = node(
        "tr",
        *(node(f"th.{kind}", column, attributes={"scope": "col"}) for kind, column in zip(kinds, columns, strict=True)),
    )
    body = [
        node(
            "tr",
            node("th.words", row[0], attributes={"scope": "row"}),
            *(node(f"td.{kind}", cell) for kind, cell in zip(kinds[1:], row[1:], strict=True)),
        )
        for row in rows
    ]
    table = node("table", node("caption", caption), node("thead", head), node("tbody", *body))
    # a scrolling region must be focusable by keyboard and have a label
    return node("div.scroll", table, attributes={"tabindex": "0", "role": "region", "aria-label": caption})


def facts_node(kind: str, facts: Iterable[tuple[str, Child]]) -> Element:
    """Return a list of names with their values; `kind` as for `node`."""
    return node(kind, *(part for name, value in facts for part in (node("dt", name), node("dd", value))))


def printable(text: str) -> str:
    """Return the text with characters that are invalid in HTML replaced."""
    return _NEVER_SHOWN.sub("\ufffd", text)


def document(root: Element) -> str:
    """Return the whole page as text."""
    return "<!doctype html>\n" + tostring(root, encoding="unicode", method="html") + "\n"


# Embed Matplotlib figures in an HTML page: unique ids, styles as classes, colours of the page.

_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_REFERENCE = re.compile(r"#([^)\s\"']+)")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_COORDINATES = ("d", "x", "y", "width", "height")  # in points: hundredths suffice


def inline_svg(svg: bytes, prefix: str, description: str) -> Element:
    """Return the figure as an `svg` element; its ids begin with `prefix`, and unreferenced ids are removed."""
    root = fromstring(svg)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{_SVG}metadata", f"{_SVG}style"):
                parent.remove(child)
    names = {name: f"{prefix}-{place}" for place, name in enumerate(sorted(_references(root)))}
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        element.text = element.tail = None
        _rewrite(element, names)
    box = root.get("viewBox", "0 0 1 1")
    root.attrib.clear()
    root.attrib.update({"viewBox": box, "role": "img", "aria-label": description})
    return root


def _references(root: Element) -> set[str]:
    return {
        match[1]
        for element in root.iter()
        for name, value in element.attrib.items()
        if name == _LINK or "url(" in value
        for match in _REFERENCE.finditer(value)
    } & {element.get("id", "") for element in root.iter()}


def _rewrite(element: Element, names: Mapping[str, str]) -> None:
    for name, value in list(element.attrib.items()):
        if name == "id":
            if value in names:
                element.set("id", names[value])
            else:
                del element.attrib["id"]
        elif name == _LINK:
            del element.attrib[name]
            is_inside = value.startswith("#")
            element.set("href", f"#{names[value[1:]]}" if is_inside else re.sub(r"\s", "", value))
        elif "url(" in value:
            element.set(name, _REFERENCE.sub(lambda match: f"#{names[match[1]]}", value))
        elif name in _COORDINATES:
            element.set(name, _LONG_NUMBER.sub(_shorten, " ".join(value.split())))


def _shorten(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")


def extract_styles(root: Element, colours: Mapping[str, str]) -> str:
    """Replace every `style` attribute below `root` by a class; return the style sheet, in `colours` of the page.

    A page without `style` attributes can forbid all styles but its own sheet.
    """
    classes: dict[str, str] = {}
    for element in root.iter():
        style = element.attrib.pop("style", None)
        if style is None:
            continue
        kept = "; ".join(part.strip() for part in style.split(";") if part.strip())
        name = classes.setdefault(kept, f"s{len(classes)}")
        element.set("class", f"{element.get('class', '')} {name}".strip())
    rules = "".join(f".{name}{{{style}}}\n" for style, name in classes.items())
    for colour, value in colours.items():
        rules = rules.replace(colour, value)
    return rules


# Frame of a self-contained page: its light and dark style sheet, and a strict content security policy.

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


def render_page(title: str, body: Element) -> str:
    """Return the page as HTML: no script, no font, no external link, and a content security policy against them."""
    styles = extract_styles(body, {light: f"var(--{name})" for name, (light, _) in COLOURS.items()})
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
        "div.card", node("dt", label), node("dd.value bad" if is_bad else "dd.value", value), node("dd.aside", aside)
    )
