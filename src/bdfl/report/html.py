"""HTML as a tree of nodes; all text is escaped when the document is written."""

import re
from collections.abc import Collection, Mapping, Sequence
from xml.etree.ElementTree import Element, tostring

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


def printable(text: str) -> str:
    """Return the text with characters that are invalid in HTML replaced."""
    return _NEVER_SHOWN.sub("\ufffd", text)


def document(root: Element) -> str:
    """Return the whole page as text."""
    return "<!doctype html>\n" + tostring(root, encoding="unicode", method="html") + "\n"
