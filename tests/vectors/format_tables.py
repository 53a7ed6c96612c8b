"""The tables of FORMAT.md, made from the record classes: fields in their order, with types and comments."""

import ast
import inspect
import re
import textwrap
import types
from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from bdfl.encoding import Record
from bdfl.identity import Place
from bdfl.ledger import block, merkle
from bdfl.protocol import messages

BEGIN, END = "<!-- tables: made by make_vectors.py -->", "<!-- end of tables -->"
_STATEMENTS = (Place, block.Conditions, block.Receipt, block.Report, block.SignedReport, block.ModelUpdate)
_SECTIONS: dict[str, Sequence[type[Record]]] = {
    "Genesis": (
        block.Genesis,
        block.Member,
        block.Limits,
        block.Physics,
        block.SchedulerName,
        block.Law,
        block.ModelForm,
        block.Tensor,
        block.AccessPoint,
        block.Privacy,
    ),
    "Blocks": (block.Block, block.Header, block.Seal, block.Body, block.Schedule, block.Modelled),
    "Statements": (*_STATEMENTS, block.SignedUpdate, block.Vote, block.SignedVote),
    "Evidence": (block.TwoVotes, block.TwoBlocks, block.TwoUpdates, block.FalseWork, block.SignedHeader),
    "Membership": (block.MembershipChange, block.Admission, block.Removal, block.Assent),
    "Proofs": (merkle.MerkleProof,),
    "Messages": (
        messages.Message,
        messages.Gossip,
        messages.Proposal,
        messages.BlockWanted,
        messages.DecidedWanted,
        messages.Decided,
    ),
}


def make_tables() -> str:
    """Markdown: a section for each group of records, a table for each record."""
    parts = []
    for title, kinds in _SECTIONS.items():
        parts.append(f"### {title}")
        parts += [_make_table(kind) for kind in kinds]
    return "\n\n".join(parts)


def documented_kinds() -> set[type[Record]]:
    """Every record that has a table."""
    return {kind for kinds in _SECTIONS.values() for kind in kinds}


def with_tables(text: str) -> str:
    """The page with its tables as they should be."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{make_tables()}\n\n{END}{after}"


def _make_table(kind: type[Record]) -> str:
    hints = get_type_hints(kind, include_extras=True)
    comments = _field_comments(kind)
    about = inspect.cleandoc(kind.__doc__ or "").replace("\n\n", " ").replace("\n", " ").replace("`", "")
    lines = [f"**{kind.__name__}**: {about}", "", "| place | field | type | meaning |", "|---|---|---|---|"]
    start = 0
    tag = kind.__struct_config__.tag
    if tag is not None:
        lines.append(f'| 0 | | text "{tag}" | which kind it is |')
        start = 1
    for place, name in enumerate(kind.__struct_fields__, start=start):
        lines.append(f"| {place} | {name} | {_describe(hints[name])} | {comments.get(name, '')} |")
    return "\n".join(lines)


def _field_comments(kind: type[Record]) -> dict[str, str]:
    """What stands behind `#` on each field's lines."""
    source = textwrap.dedent(inspect.getsource(kind))
    lines = source.splitlines()
    (body,) = ast.parse(source).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            comments = [re.search(r"#\s*(.*)$", line) for line in lines[node.lineno - 1 : node.end_lineno]]
            found[node.target.id] = " ".join(match.group(1).replace("|", "\\|") for match in comments if match)
    return found


def _describe(hint: Any, meta: Sequence[msgspec.Meta] = ()) -> str:
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *limits = get_args(hint)
        return _describe(inner, [*meta, *(limit for limit in limits if isinstance(limit, msgspec.Meta))])
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(one) for one in get_args(hint))
    if origin is tuple:
        return _describe_array(get_args(hint), meta)
    if hint is type(None):
        return "nil"
    if hint is bool:
        return "boolean"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "text " + " or ".join(f'"{one.value}"' for one in hint)
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint.__name__
    if hint is int:
        return _describe_integer(meta)
    least, most = _limit(meta, "min_length"), _limit(meta, "max_length")
    if hint is bytes:
        return f"bytes, {least}" if least is not None and least == most else _up_to("bytes", most, "")
    assert hint is str, hint
    return _up_to("text", most, " characters")


def _describe_array(inner: Sequence[Any], meta: Sequence[msgspec.Meta]) -> str:
    if len(inner) == 2 and inner[1] is Ellipsis:
        least, most = _limit(meta, "min_length"), _limit(meta, "max_length")
        limits = (f", at least {least}" if least else "") + (f", at most {most}" if most else "")
        return f"array of {_describe(inner[0])}{limits}"
    return f"array of {len(inner)}: {', '.join(map(_describe, inner))}"


def _describe_integer(meta: Sequence[msgspec.Meta]) -> str:
    least, most, below = (_limit(meta, name) for name in ("ge", "le", "lt"))
    most = below - 1 if below is not None else most
    return f"integer, {_number(least)} to {_number(most)}"


def _number(value: int | None) -> str:
    return {2**63 - 1: "2^63 - 1", -(2**63 - 1): "-(2^63 - 1)", 10**18: "10^18"}.get(value or 0, str(value))


def _up_to(what: str, most: int | None, unit: str) -> str:
    return what if most is None else f"{what}, at most {most}{unit}"


def _limit(meta: Sequence[msgspec.Meta], name: str) -> int | None:
    found = [getattr(item, name) for item in meta if getattr(item, name) is not None]
    return found[0] if found else None
