"""Embed Matplotlib figures in an HTML page: unique ids, styles as classes, colours of the page."""

import re
from collections.abc import Mapping
from xml.etree.ElementTree import Element, fromstring

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
