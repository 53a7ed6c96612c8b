"""Errors of the validity rules: each names the broken rule, the value expected and the value found.

Expected is the value that the rules require, recomputed where possible; found is the value in the block, statement or
file. The command line, `/verify.json`, the audit report and the explorer's own verifier use the words in this sense.
"""

from bdfl.encoding import Record
from bdfl.errors import BdflError, one_line

_SHOWN = 120  # characters of a value that an error shows


class RuleBroken(BdflError):
    """A violation of a rule of the chain."""

    def __init__(self, rule: str, expected: object, found: object) -> None:
        super().__init__(rule, expected, found)
        self.rule = rule
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        expected, found = self.difference
        return f"{self.rule}: {found} found, {expected} expected"

    @property
    def difference(self) -> tuple[str, str]:
        """Expected and found as text; of records and long tuples, the first part that differs."""
        return _difference(self.expected, self.found)


class InvalidGenesis(RuleBroken):
    """A genesis that no chain can begin with."""


class NotVotable(RuleBroken):
    """A valid block that this member does not vote for."""


class InvalidBlock(RuleBroken):
    """A block, or a statement for one, that is not valid."""


class BadLink(InvalidBlock):
    """A block of another format, chain, height or parent, or with a body that its header does not name."""


class BadTime(InvalidBlock):
    """A block that is not later than the median time past, or is beyond the year 9999."""


class BadProposer(InvalidBlock):
    """A block whose proposer is no member."""


class BadSignature(InvalidBlock):
    """A statement that the member it names did not sign for this place."""


class BadWork(InvalidBlock):
    """A block of another difficulty than the chain requires, or whose hash is above its target."""


class BadUpdate(InvalidBlock):
    """An update that does not count in this round."""


class InvalidUpdate(BadUpdate):
    """An update whose bytes are not a model of this chain."""


class BadReport(InvalidBlock):
    """A report that does not count for the next round."""


class BadVote(InvalidBlock):
    """A vote that is malformed or not by a member at this height."""


class BadCertificate(InvalidBlock):
    """Votes that do not make a block final."""


class BadEvidence(InvalidBlock):
    """Evidence that proves nothing, or nothing new."""


class BadChange(InvalidBlock):
    """A change of membership that is impossible, expired or lacks the assents of a quorum."""


class WrongModel(InvalidBlock):
    """A global model that is not the aggregate of the block's updates, or a wrong claim of being empty."""


class WrongQueues(InvalidBlock):
    """Virtual queues that do not follow from the round."""


class WrongReceipts(InvalidBlock):
    """Modelled costs that do not follow from the schedule."""


class BadSchedule(InvalidBlock):
    """A schedule that is not the agreed one, is malformed, breaks a constraint or misstates its objective."""


class MissingBlob(BdflError):
    """Bytes that validation needs and that are not available; no verdict about the block."""

    def __init__(self, digest: bytes) -> None:
        super().__init__(digest)
        self.digest = digest

    def __str__(self) -> str:
        return f"blob {self.digest.hex()[:16]}: not given, its bytes expected"


def require_equal(error: type[RuleBroken], rule: str, expected: object, found: object) -> None:
    """Raise `error` unless both are equal."""
    if found != expected:
        raise error(rule, expected, found)


def _difference(expected: object, found: object, name: str = "") -> tuple[str, str]:
    for part, one, other in _parts_of(expected, found):
        if one != other:
            return _difference(one, other, (name + part).removeprefix("."))
    label = f"{name} = " if name else ""
    return label + _show(expected), label + _show(found)


def _parts_of(expected: object, found: object) -> list[tuple[str, object, object]]:
    """Named pairs of parts of two records of one type or two long tuples of one length; else none."""
    if isinstance(expected, Record) and type(found) is type(expected):
        fields = expected.__struct_fields__
        return [(f".{field}", getattr(expected, field), getattr(found, field)) for field in fields]
    if isinstance(expected, tuple) and isinstance(found, tuple) and len(expected) == len(found):
        pairs = zip(expected, found, strict=True) if len(str(expected)) > _SHOWN else ()
        return [(f"[{place}]", *pair) for place, pair in enumerate(pairs)]
    return []


def _show(value: object) -> str:
    text = value.hex()[:16] if isinstance(value, bytes) else one_line(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
