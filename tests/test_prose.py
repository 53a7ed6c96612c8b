"""Pages read well: no sentence over 60 words, no table cell over 40. What they name in the tree exists."""

import re
from pathlib import Path

import pytest

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
