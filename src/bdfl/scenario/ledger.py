"""Settings of the chain, of network faults, and of members that misbehave."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from bdfl.scenario.section import Section
from bdfl.scenario.values import Fraction, NotNegative, Positive, about


class QuorumRule(StrEnum):
    """Quorum of votes that commits a block."""

    MAJORITY = "majority"  # more than half: safe if members may crash but are honest
    BFT = "bft"  # more than two thirds: safe if under a third of the members are Byzantine


class WorkKind(StrEnum):
    """Hash function of the proof of work."""

    SHA256 = "sha256"
    ARGON2ID = "argon2id"


class Behaviour(StrEnum):
    """Behaviour of an adversarial member. The first ones attack the protocol, those from `LAZY` on the model."""

    HONEST = "honest"
    FORGE = "forge"  # signs in the name of others
    REPLAY = "replay"  # resends statements of earlier rounds
    TWO_BLOCKS = "two-blocks"  # sends different blocks of one attempt to different members
    TWO_VOTES = "two-votes"  # votes for different blocks in one attempt
    TWO_UPDATES = "two-updates"  # sends different updates of one round to different members
    WRONG_MODEL = "wrong-model"  # proposes a global model that is not the aggregate
    WRONG_SCHEDULE = "wrong-schedule"  # proposes a schedule in its own favour
    STALE_UPDATES = "stale-updates"  # proposes updates of an earlier round
    FALSE_WORK = "false-work"  # proposes blocks without mining
    DROP_UPDATES = "drop-updates"  # leaves updates of others out of its blocks
    SILENT = "silent"  # never votes, proposes or answers
    BAD_BLOB = "bad-blob"  # sends NaN, wrong shapes or far too many bytes as its model
    LAZY = "lazy"  # copies another member's model instead of training
    LABEL_FLIP = "label-flip"  # trains on wrong labels
    SIGN_FLIP = "sign-flip"  # sends the negated update
    SCALING = "scaling"  # sends a multiple of the update
    GAUSSIAN = "gaussian"  # sends noise around the model


class Ledger(Section, frozen=True, kw_only=True):
    """Settings of the chain."""

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
        about("s", "ours", "limit on training and upload of a client; none: twice the slowest client's initial time"),
    ] = None


class Faults(Section, frozen=True, kw_only=True):
    """Faults of the network and the machines, up to a given round."""

    loss: Annotated[Fraction, about("", "ours", "share of messages that are lost")] = 0.0
    duplication: Annotated[Fraction, about("", "ours", "share of messages that arrive twice")] = 0.0
    delay_s: Annotated[NotNegative, about("s", "ours", "mean extra delay of a message, drawn: it reorders")] = 0.0
    partitions: Annotated[int, Meta(ge=0), about("", "ours", "times the network splits in two and heals")] = 0
    crashes: Annotated[int, Meta(ge=0), about("", "ours", "times a node crashes and restarts from its store")] = 0
    freezes: Annotated[int, Meta(ge=0), about("", "ours", "times a node pauses and resumes")] = 0
    slow: Annotated[int, Meta(ge=0), about("", "ours", "nodes ten times slower than modelled")] = 0
    duration_s: Annotated[Positive, about("s", "ours", "mean length of a partition, crash or freeze")] = 1.0
    until_round: Annotated[int, Meta(ge=0), about("", "ours", "last round with faults; 0: all rounds")] = 0


class Adversaries(Section, frozen=True, kw_only=True):
    """Members that misbehave."""

    kind: Annotated[Behaviour, about("", "ours", "behaviour of the adversaries")] = Behaviour.HONEST
    members: Annotated[tuple[int, ...], about("", "ours", "client numbers of the adversaries")] = ()
    strength: Annotated[
        Positive,
        about("", "ours", "factor of sign-flip and scaling; of gaussian: deviation of the noise over the update's own"),
    ] = 10.0
