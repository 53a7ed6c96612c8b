"""The chain a run writes, and what may go wrong on the way: rules, faults of the network, members that misbehave."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from bdfl.scenario.section import Section
from bdfl.scenario.values import Fraction, NotNegative, Positive, about


class QuorumRule(StrEnum):
    """How many votes make a block final."""

    MAJORITY = "majority"  # more than half: safe while members may crash but not lie
    BFT = "bft"  # more than two thirds: safe while under a third of the members lie


class WorkKind(StrEnum):
    """What is hashed for the proof of work."""

    SHA256 = "sha256"
    ARGON2ID = "argon2id"


class Behaviour(StrEnum):
    """What a member does that it should not. The first ones attack the protocol, those from `LAZY` on the model."""

    HONEST = "honest"
    FORGE = "forge"  # signs in the name of others
    REPLAY = "replay"  # says again what was said in earlier rounds
    TWO_BLOCKS = "two-blocks"  # sends different blocks of one attempt to different members
    TWO_VOTES = "two-votes"  # votes for different blocks in one attempt
    TWO_UPDATES = "two-updates"  # sends different updates of one round to different members
    WRONG_MODEL = "wrong-model"  # proposes a global model that is not the aggregate
    WRONG_SCHEDULE = "wrong-schedule"  # proposes a schedule that suits itself
    STALE_UPDATES = "stale-updates"  # proposes updates of an earlier round
    FALSE_WORK = "false-work"  # proposes blocks without mining
    DROP_UPDATES = "drop-updates"  # leaves others' updates out of its blocks
    SILENT = "silent"  # never votes, proposes or answers
    BAD_BLOB = "bad-blob"  # sends NaN, wrong shapes or far too many bytes as its model
    LAZY = "lazy"  # copies another's model instead of training
    LABEL_FLIP = "label-flip"  # trains on wrong labels
    SIGN_FLIP = "sign-flip"  # sends the opposite of what it learned
    SCALING = "scaling"  # sends many times what it learned
    GAUSSIAN = "gaussian"  # sends noise around the model


class Ledger(Section, frozen=True, kw_only=True):
    """The chain."""

    quorum: Annotated[QuorumRule, about("", "paper", "votes that make a block final: majority or bft")] = (
        QuorumRule.MAJORITY
    )
    work: Annotated[WorkKind, about("", "ours", "proof of work: sha256 or argon2id")] = WorkKind.SHA256
    cycles_per_hash: Annotated[
        Positive, about("cycle", "ours", "cycles one hash stands for; alpha over it is the difficulty in hashes")
    ] = 1e6
    keep_blocks: Annotated[
        int, Meta(ge=0), about("", "ours", "newest blocks whose updates a run or a node keeps; 0: of all")
    ] = 0
    max_exchange_s: Annotated[
        Positive | None,
        about("s", "ours", "most that a client may train and upload; not given: twice what the slowest needs at first"),
    ] = None


class Faults(Section, frozen=True, kw_only=True):
    """What the network and the machines do to the protocol, until a round; after that all is well."""

    loss: Annotated[Fraction, about("", "ours", "share of messages that are lost")] = 0.0
    duplication: Annotated[Fraction, about("", "ours", "share of messages that arrive twice")] = 0.0
    delay_s: Annotated[NotNegative, about("s", "ours", "mean extra delay of a message, drawn: it reorders")] = 0.0
    partitions: Annotated[int, Meta(ge=0), about("", "ours", "times the network falls into two parts and heals")] = 0
    crashes: Annotated[int, Meta(ge=0), about("", "ours", "times a node crashes and starts again from its store")] = 0
    freezes: Annotated[int, Meta(ge=0), about("", "ours", "times a node stands still and goes on")] = 0
    slow: Annotated[int, Meta(ge=0), about("", "ours", "nodes that are ten times as slow as modelled")] = 0
    duration_s: Annotated[Positive, about("s", "ours", "mean length of a partition, crash or freeze")] = 1.0
    until_round: Annotated[int, Meta(ge=0), about("", "ours", "last round with faults; 0: all rounds")] = 0


class Adversaries(Section, frozen=True, kw_only=True):
    """Members that misbehave."""

    kind: Annotated[Behaviour, about("", "ours", "what they do")] = Behaviour.HONEST
    members: Annotated[tuple[int, ...], about("", "ours", "who does it, by client number")] = ()
    strength: Annotated[
        Positive,
        about("", "ours", "factor of sign-flip and scaling; of gaussian: deviation of the noise over the update's own"),
    ] = 10.0
