"""What the site does to the pages, which are written for GitHub: MkDocs calls these functions by their names.

- Formulas, in ``math`` blocks and between dollar signs and backticks, become MathML.
- A block's second word, the file it is to be saved as, becomes its title.
- A list that follows a line of text without an empty line between is a list, as on GitHub.
- Links out of the folder of the documentation become the path itself: the site does not have those files.
- The diagram of the protocol, which GitHub draws from its text, becomes the picture of the same table.
- The marker of `reference/commands.md` becomes the help of every command.
"""

import re
from typing import Any
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor

from docs.site.command_pages import MARKER, describe_commands
from docs.site.mathml import split_tag, to_mathml

FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})")
NAMED_BLOCK = re.compile(r"^(```\w+) (\S+)$")
LIST_START = re.compile(r"^(?:[-*]|1\.) ")
MERMAID = re.compile(r"^```mermaid\n.*?^```$", re.MULTILINE | re.DOTALL)
STATES = "![The states of a node and its moves between them](figures/states.svg)"
OUTWARD_LINK = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)+((?:examples|tests|benchmarks|scenarios|src|verifiers|campaigns|models)/[^)]*)\)"
)


def on_config(config: Any) -> Any:
    config.markdown_extensions.append(Formulas())
    return config


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    if MARKER in markdown:
        markdown = markdown.replace(MARKER, describe_commands())
    return as_site_text(markdown)


def as_site_text(markdown: str) -> str:
    """The page as Python-Markdown has to be told it."""
    lines: list[str] = []
    markdown = MERMAID.sub(STATES, markdown)
    fence: str | None = None
    for line in markdown.splitlines():
        match = FENCE.match(line)
        if match and fence is None:
            fence = match[2]
            line = NAMED_BLOCK.sub(r'\1 title="\2"', line)
        elif match and fence is not None and line.strip() == fence:
            fence = None
        elif fence is None:
            if LIST_START.match(line) and lines and _is_text(lines[-1]):
                lines.append("")
            line = OUTWARD_LINK.sub(_as_path, line)
        lines.append(line)
    return "\n".join(lines) + "\n"


def _is_text(line: str) -> bool:
    """Whether a line is of a paragraph, not empty, of a list, a heading or a table."""
    return bool(line) and not line.startswith((" ", "#", "|", "- ", "* ", "```")) and not re.match(r"\d+\. ", line)


def _as_path(match: re.Match[str]) -> str:
    text, path = match[1], match[2]
    return f"`{path}`" if text.strip("`") in path else f"{text} (`{path}`)"


class Formulas(Extension):
    """Formulas as MathML."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the library's name
        md.preprocessors.register(_Blocks(md), "math-blocks", 27)  # before fences, after white space
        md.inlinePatterns.register(_Inline(r"\$`([^`]+)`\$", md), "math-inline", 195)  # before code


class _Blocks(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        given = "\n".join(lines)
        return re.sub(r"^```math\n(.*?)^```$", self._replace, given, flags=re.MULTILINE | re.DOTALL).split("\n")

    def _replace(self, match: re.Match[str]) -> str:
        formula, number = split_tag(match[1])
        shown = "" if number is None else f'<span class="number">({number})</span>'
        html = f'<div class="formula">{to_mathml(formula, is_block=True)}{shown}</div>'
        return f"\n{self.md.htmlStash.store(html)}\n"


class _Inline(InlineProcessor):
    def handleMatch(  # type: ignore[override]  # noqa: N802 - the library's name
        self, m: re.Match[str], data: str
    ) -> tuple[Element | str, int, int]:
        return self.md.htmlStash.store(to_mathml(m[1], is_block=False)), m.start(0), m.end(0)
