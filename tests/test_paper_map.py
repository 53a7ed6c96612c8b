"""docs/paper-map.md says the truth: every citation in the source has its row, every row its citation and its test."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src"
PLACE = r"Eq\. \d+|Section [IVX]+-[A-F]|Algorithm \d|Definition \d|Table [IVX]+"
CITATION = re.compile(rf"\[Li24, ({PLACE})\]")
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| `([\w.]+)` \| `([\w./]+)::(\w+)` \|$")


def read_rows() -> list[tuple[str, str, str, str]]:
    lines = (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("|")][2:]
    matches = [ROW.match(line) for line in table]
    assert all(matches), [line for line, match in zip(table, matches, strict=True) if match is None]
    return [(match[1], match[3], match[4], match[5]) for match in matches if match]


def find_citations() -> Iterator[tuple[str, str]]:
    """Every citation with the dotted name of the innermost function or class it stands in, or of its module."""
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        parts = path.relative_to(SOURCES).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        for number, line in enumerate(text.splitlines(), start=1):
            for match in CITATION.finditer(line):
                yield match[1], ".".join([module, *_owners(ast.parse(text), number)])


def _owners(node: ast.AST, line: int) -> list[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)) and child.lineno <= line <= (child.end_lineno or 0):
            return [child.name, *_owners(child, line)]
    return []


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def resolve(dotted: str) -> object:
    """The module, class, function or property of that name; raises if there is none."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name)
        return found
    raise ModuleNotFoundError(dotted)


def test_the_map_has_exactly_the_citations_of_the_source():
    assert sorted({(paper, function) for paper, function, _, _ in read_rows()}) == sorted(set(find_citations()))


def test_no_row_stands_twice():
    rows = [(paper, function) for paper, function, _, _ in read_rows()]
    assert len(rows) == len(set(rows))


def test_every_citation_is_written_the_same_way():
    for path in SOURCES.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert text.count("Li24") == len(CITATION.findall(text)), path


@pytest.mark.parametrize("function", sorted({row[1] for row in read_rows()}))
def test_every_function_of_the_map_exists(function):
    resolve(function)


@pytest.mark.parametrize(("path", "name"), sorted({row[2:] for row in read_rows()}))
def test_every_test_of_the_map_exists(path, name):
    assert name in names_in(path)
