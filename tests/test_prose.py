"""Pages read well: no sentence over 60 words, no table cell over 40. What they name in the tree exists."""

import re
from pathlib import Path

import pytest

from tests.test_paper_map import resolve

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
MAX_SENTENCE = 60
MAX_CELL = 40


def read_prose(text):
    """The paragraphs and the table cells of a page, without code and link targets."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    paragraphs, cells = [[]], []
    for line in map(str.strip, text.splitlines()):
        if line.startswith("|"):
            cells += line.strip("|").split("|")
        elif not line or line.startswith("#"):
            paragraphs.append([])
        elif item := re.match(r"(?:[-*]|\d+\.) (.*)", line):
            paragraphs.append([item[1]])
        else:
            paragraphs[-1].append(line)
    return [" ".join(lines) for lines in paragraphs if lines], cells


def find_long(text):
    paragraphs, cells = read_prose(text)
    sentences = [sentence for paragraph in paragraphs for sentence in re.split(r"(?<=[.!?])[\"')*_`]*\s+", paragraph)]
    return [
        part.strip()
        for parts, limit in ((sentences, MAX_SENTENCE), (cells, MAX_CELL))
        for part in parts
        if len(part.split()) > limit
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_and_no_cell_is_too_long(page):
    assert find_long(page.read_text(encoding="utf-8")) == []


def test_long_ones_are_found():
    long = " ".join(["word"] * 61) + "."
    assert find_long(f"Short. {long} Short.\n\n| {' '.join(['cell'] * 41)} | short |") == [
        long,
        " ".join(["cell"] * 41),
    ]
    assert find_long("- one\n- " + " ".join(["word"] * 60) + "\n\n```\n" + long + "\n```") == []


FILE = re.compile(r"`((?:\.ci|benchmarks|campaigns|docs|examples|models|scenarios|src|tests|verifiers)/[\w./-]+\.\w+)`")
MODULE = re.compile(r"`(bdfl(?:\.\w+)+)`")
ENTRY_POINTS = {"bdfl.schedulers", "bdfl.trackers"}  # groups, not modules
# Results and changes are of the commits that they name.
CURRENT = [page for page in PAGES if "results" not in page.parts and page.name != "CHANGELOG.md"]


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_and_every_module_named_on_a_page_exists(page):
    text = page.read_text(encoding="utf-8")
    assert [name for name in FILE.findall(text) if not (ROOT / name).exists()] == []
    for name in set(MODULE.findall(text)) - ENTRY_POINTS:
        resolve(name)


def test_every_term_of_the_glossary_says_where_it_lives_and_none_stands_twice():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    terms = [row for row in rows if row[0] != "term" and not set(row[0]) <= set("-")]
    assert len({row[0] for row in terms}) == len(terms) > 60
    assert all(len(row) == 3 and re.match(r"`(bdfl|campaigns)\b", row[2]) for row in terms)


def test_contributing_leads_to_every_package():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    packages = [path.parent.name for path in (ROOT / "src" / "bdfl").glob("*/__init__.py")]
    assert [name for name in packages if f"`{name}`" not in text] == []
