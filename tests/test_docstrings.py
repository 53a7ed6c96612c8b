"""Docstrings begin with a verb or the noun, as in the codebases we learn from."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
QUESTION_WORDS = {"What", "Who", "Whom", "Whose", "Where", "How", "When", "Which", "Whether", "Why"}
FOLDERS = ("src", "campaigns")


def first_words(source: str) -> dict[int, str]:
    """First word of every docstring, by line."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, _Documented)]
    return {_line(node): text.split()[0] for node in nodes if (text := ast.get_docstring(node))}


_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 1)


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_begins_with_a_question_word(folder):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, word in first_words(path.read_text("utf-8")).items()
        if word in QUESTION_WORDS
    ]
    assert not found, "begin with a verb or the noun:\n" + "\n".join(found)


def test_a_question_word_is_noticed():
    assert first_words('def f():\n    """Whether it is so."""\n') == {1: "Whether"}
