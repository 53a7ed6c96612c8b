"""Instances of the model that are looked at in full, and wrong models that must be caught."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from campaigns.model.spin import Checked, check


@dataclass(frozen=True)
class Instance:
    """Parameters of the model, and what they stand for."""

    name: str
    about: str
    parameters: Mapping[str, int | str]
    hash_bits: int = 20


SMALL = Instance("small", "4 members, 1 liar, 2 attempts, 1 height", {"N": 4, "F": 1, "Q": 3, "A": 2, "H": 1})
THREE = Instance("three", "4 members, 1 liar, 3 attempts, 1 height", {"N": 4, "F": 1, "Q": 3, "A": 3, "H": 1}, 24)
WHOLE = Instance("whole", "4 members, 1 liar, 3 attempts, 2 heights", {"N": 4, "F": 1, "Q": 3, "A": 3, "H": 2}, 26)
PROGRESS = Instance(
    "progress",
    "4 members, 1 liar, 1 attempt in trouble of 4, 2 blocks, one shown late by the liar, which then is silent",
    {"PROGRESS": 1, "SILENT": 1, "N": 4, "F": 1, "Q": 3, "A": 4, "C": 1, "B": 2},
)
TROUBLE = Instance(
    "trouble",
    "the same with 2 attempts in trouble of 5",
    {"PROGRESS": 1, "SILENT": 1, "N": 4, "F": 1, "Q": 3, "A": 5, "C": 2, "B": 2},
    24,
)
LOCKS = Instance(
    "locks",
    "two members locked on different blocks with the liar's help, which then is silent, 4 attempts",
    {"PROGRESS": 1, "SILENT": 1, "LOCKS": 1, "N": 4, "F": 1, "Q": 3, "A": 4, "B": 2},
)
WITHHELD = Instance(
    "withheld",
    "as locks, 6 attempts, and the liar goes on: it shows withheld prevotes to one member at a time",
    {"PROGRESS": 1, "LOCKS": 1, "N": 4, "F": 1, "Q": 3, "A": 6, "B": 2},
)
LED = Instance(
    "led",
    "as progress, the liar goes on, and honest members lead attempts 3 and 4",
    {"PROGRESS": 1, "HONEST_LEAD": 1, "N": 4, "F": 1, "Q": 3, "A": 4, "C": 1, "B": 2},
    26,
)
INSTANCES = {one.name: one for one in (SMALL, THREE, WHOLE, LOCKS, WITHHELD, PROGRESS, TROUBLE, LED)}


@dataclass(frozen=True)
class WrongModel:
    """A model with one rule broken, and the smallest instance that shows it."""

    name: str
    change: str
    instance: Instance = SMALL


MUTANTS: tuple[WrongModel, ...] = (
    WrongModel("small-quorum", "a quorum is one vote smaller"),
    WrongModel("vote-twice-counted", "the first vote for a block counts twice"),
    WrongModel("prevotes-decide", "a quorum of prevotes commits"),
    WrongModel("forgotten-lock", "the lock does not bind the next prevote"),
    WrongModel("second-prevote", "a better block is prevoted for in the same attempt"),
    WrongModel("late-precommit", "a precommit is cast in an attempt that was left"),
    WrongModel("sent-before-kept", "a vote is sent before it is kept"),
    WrongModel("forgotten-votes", "own votes are forgotten at a restart"),
    WrongModel("forgotten-progress", "attempt and lock are forgotten at a restart"),
    WrongModel("lock-not-kept", "the lock is forgotten at a restart"),
    WrongModel("restart-in-attempt-1", "a restarted member begins in attempt 1"),
    WrongModel("attempt-comes-back", "an attempt that was left can be entered again"),
    WrongModel("old-lock-precommitted", "a precommit is cast for a lock of an earlier attempt", THREE),
    WrongModel("lock-moves-back", "an earlier quorum moves the lock", THREE),
    WrongModel("past-quorums-ignored", "a quorum of prevotes of a past attempt moves no lock", LOCKS),
    WrongModel("unsafe-lead", "a leader is followed against an own precommit", THREE),
    WrongModel("no-leader", "nobody leads later attempts", WITHHELD),
    WrongModel("precommit-at-the-end", "a precommit is cast up to the end of an attempt", WITHHELD),
    WrongModel("lock-not-repeated", "the prevotes behind a lock are not said again", LOCKS),
)


@dataclass(frozen=True)
class Caught:
    """The outcome of a wrong model."""

    mutant: WrongModel
    found: Checked

    @property
    def is_caught(self) -> bool:
        return bool(self.found.law)


def hunt(names: Iterable[str] | None = None, on_progress: Callable[[int, int], None] | None = None) -> list[Caught]:
    """Every wrong model, or those named, looked at until a law is broken."""
    chosen = [mutant for mutant in MUTANTS if names is None or mutant.name in set(names)]
    results = []
    for done, mutant in enumerate(chosen, start=1):
        results.append(Caught(mutant, check_mutant(mutant)))
        if on_progress is not None:
            on_progress(done, len(chosen))
    return results


def check_mutant(mutant: WrongModel) -> Checked:
    """The law that the checker finds broken in a wrong model."""
    name = mutant.name.upper().replace("-", "_")
    return check({**mutant.instance.parameters, "MUTANT": name}, hash_bits=mutant.instance.hash_bits)
