"""The documentation site: it builds strictly, has every page, needs no network; its pictures are those of the code."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from docs.figures.make_diagrams import DIAGRAMS, FOLDER as FIGURES
from docs.site.hooks import as_site_text
from docs.site.mathml import BadFormula, split_tag, to_mathml
from tests.built_site import ROOT, find_site

DOCS = ROOT / "docs"
# What a browser fetches by itself, by tag and attribute.
FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}


class PlainLoader(yaml.SafeLoader):
    """Reads the settings of the site without what would run something."""


PlainLoader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return find_site(tmp_path_factory)


def pages_of(nav: object) -> list[str]:
    """Every file of a navigation, in its order."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in pages_of(part)]  # type: ignore[attr-defined]


class Fetches(HTMLParser):
    """Addresses that a page fetches from, and the texts of its formulas."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.num_formulas = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        is_canonical = tag == "link" and given.get("rel") in ("canonical", "prev", "next")
        if tag in FETCHED and not is_canonical:
            self.addresses.append(given.get(FETCHED[tag]) or "")
        self.num_formulas += tag == "math"


def read(path: Path) -> Fetches:
    found = Fetches()
    found.feed(path.read_text(encoding="utf-8"))
    return found


# The site


def test_every_page_is_in_the_navigation_once_and_on_the_site(site: Path) -> None:
    nav = pages_of(yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=PlainLoader)["nav"])
    assert sorted(nav) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
    for page in nav:
        name = page.replace("README.md", "index.html").replace(".md", ".html")
        assert (site / name).is_file(), page


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        elsewhere = [one for one in read(path).addresses if re.match(r"(https?:)?//", one)]
        assert elsewhere == [], path
    for path in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", path.read_text(encoding="utf-8")), path


def test_formulas_are_drawn_by_the_browser_and_none_is_left_as_text(site: Path) -> None:
    assert read(site / "mathematics.html").num_formulas > 60
    for path in site.rglob("*.html"):
        assert "$`" not in path.read_text(encoding="utf-8"), path


def test_what_only_makes_the_site_is_not_on_it(site: Path) -> None:
    assert [path for path in site.rglob("*") if path.suffix in (".py", ".pyc", ".csv", ".md")] == []


def test_the_reference_has_functions_with_what_they_return_and_every_command(site: Path) -> None:
    assert "Uplink rate (bit/s)" in (site / "reference" / "costs.html").read_text(encoding="utf-8")
    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    for name in ("bdfl run", "bdfl chain verify", "bdfl network up", "bdfl schedulers check"):
        assert f">{name}<" in commands, name


# Pictures


@pytest.mark.parametrize("name", DIAGRAMS)
def test_the_diagrams_are_those_of_the_program(name: str) -> None:
    is_current = (FIGURES / name).read_text(encoding="utf-8") == DIAGRAMS[name]()
    assert is_current, f"docs/figures/{name} is not what the program is now: make diagrams"


# What pages are turned into


def test_pages_for_github_become_pages_for_the_site() -> None:
    page = "Text:\n- one\n  more\n- two\n\n```toml my.toml\n- no list\n```\nSee [it](../examples/service/README.md)."
    assert as_site_text(page).splitlines() == [
        "Text:", "", "- one", "  more", "- two", "", '```toml title="my.toml"', "- no list", "```",
        "See it (`examples/service/README.md`).",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("formula", "parts"),
    [
        ("c_i = \\phi_i H", ["<msub><mi>c</mi><mi>i</mi></msub>", "<mo>=</mo>", "<mi>φ</mi>"]),
        ("\\frac{a}{b^2}", ["<mfrac><mrow><mi>a</mi></mrow><mrow><msup><mi>b</mi><mn>2</mn></msup></mrow></mfrac>"]),
        ("\\sum_{i \\in S} Z_i", ["<munder>", "∑", "<mo>∈</mo>"]),
        ("\\sqrt[3]{x}", ["<mroot><mrow><mi>x</mi></mrow><mrow><mn>3</mn></mrow></mroot>"]),
        ("\\text{if } x < 1", ["<mtext>if\u00a0</mtext>", "<mo>&lt;</mo>"]),
        ("\\left( x \\right)", ['<mo stretchy="true">(</mo>', '<mo stretchy="true">)</mo>']),
        ("\\begin{cases} 1 & x \\\\ 2 & y \\end{cases}", ["<mtable", "<mtd><mrow><mn>2</mn></mrow></mtd>"]),
    ],
)
def test_formulas_become_mathml(formula: str, parts: list[str]) -> None:
    found = to_mathml(formula, is_block=True)
    for part in parts:
        assert part in found


@pytest.mark.parametrize(
    "formula", ["\\unheard{x}", "{x", "x}", "x__y", "\\left( x", "\\begin{matrix} x \\end{matrix}"]
)
def test_a_formula_that_cannot_be_drawn_is_an_error(formula: str) -> None:
    with pytest.raises(BadFormula):
        to_mathml(formula, is_block=True)


def test_the_number_of_a_formula_is_taken_out_of_it() -> None:
    assert split_tag("x = y \\tag{8}") == ("x = y ", "8")
    assert split_tag("x = y") == ("x = y", None)
