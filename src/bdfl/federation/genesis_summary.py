"""Plain-language summary of a genesis or draft: members, rules and trust assumptions."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bdfl.federation.genesis_draft import Draft, assign_cards
from bdfl.federation.genesis_file import GenesisFile, describe_access_points
from bdfl.federation.keys import in_groups, key_fingerprint, speakable
from bdfl.federation.member_card import SignedCard
from bdfl.ledger.block import Tensor
from bdfl.ledger.costs import NANO
from bdfl.ledger.member_set import quorum_size
from bdfl.scenario import LiveMode, QuorumRule, Scenario, scenario_digest
from bdfl.scenario.files import named_functions
from bdfl.server_optimizer import write_rule

_SPOKEN_BYTES = 12


@dataclass(frozen=True)
class MemberSummary:
    """A member number and the card that holds it."""

    member: int
    name: str | None  # none: free
    fingerprint: str | None
    public_key: str | None
    samples: int | None
    label_counts: tuple[int, ...] | None
    rate: float | None  # beta_i; none until all members have joined
    is_signed: bool


@dataclass(frozen=True)
class AccessPointSummary:
    """An access point."""

    name: str
    certificate: str  # SHA-256


@dataclass(frozen=True)
class GenesisSummary:
    """A genesis, or the draft of one."""

    kind: str  # genesis or draft
    name: str
    digest: str | None  # the digest that members sign; none for a draft
    digest_groups: str | None
    digest_words: str | None  # its first 96 bits as words
    scenario: str  # SHA-256
    mode: str
    rounds: int
    seats: tuple[MemberSummary, ...]
    access_points: tuple[AccessPointSummary, ...]
    model: str
    num_parameters: int
    model_bytes: int
    data: str  # the scenario's data source
    inputs: str | None  # type and shape of every member's inputs; none: anything that fits the model
    num_labels: int
    scheduler: str
    aggregation: str
    faulty: int  # number of malicious updates tolerated
    quorum: int
    quorum_rule: str
    work: str
    privacy: str | None  # differential privacy settings; none: off
    first_round: tuple[int, ...] | None  # clients selected to train
    missing: tuple[int, ...]  # members whose card (draft) or signature (genesis) is missing
    trust: tuple[str, ...]


def summarise_draft(draft: Draft, scenario: Scenario) -> GenesisSummary:
    """Summarise a draft that was validated."""
    found = assign_cards(draft, scenario)
    seats = tuple(_describe_seat(number, signed) for number, signed in enumerate(found))
    missing = tuple(number for number, signed in enumerate(found) if signed is None)
    return _summarise(scenario, draft.tensors, len(draft.initial_model), seats, draft.access_points, missing)


def summarise_genesis(file: GenesisFile, scenario: Scenario) -> GenesisSummary:
    """Summarise a genesis file that was validated."""
    genesis, missing = file.genesis, tuple(file.missing_signatures)
    seats = tuple(
        replace(
            _describe_seat(number, signed),
            rate=genesis.members[number].limits.rate_nano / NANO,
            is_signed=number not in missing,
        )
        for number, signed in enumerate(file.cards)
    )
    return replace(
        _summarise(scenario, genesis.model.tensors, genesis.model.size, seats, file.access_points, missing),
        kind="genesis",
        digest=file.chain.hex(),
        digest_groups=in_groups(file.chain),
        digest_words=spoken_digest(file.chain),
        first_round=genesis.schedule.selected,
    )


def spoken_digest(chain: bytes) -> str:
    """Encode the first 96 bits of a digest as words; signatures cover all of it."""
    return speakable(chain[:_SPOKEN_BYTES])


def _summarise(
    scenario: Scenario,
    tensors: Sequence[Tensor],
    model_bytes: int,
    seats: tuple[MemberSummary, ...],
    access_points: Sequence[bytes],
    missing: tuple[int, ...],
) -> GenesisSummary:
    ledger, aggregation = scenario.ledger, scenario.learning.aggregation
    return GenesisSummary(
        kind="draft",
        name=scenario.name,
        digest=None,
        digest_groups=None,
        digest_words=None,
        scenario=scenario_digest(scenario),
        mode=scenario.live.mode.value,
        rounds=scenario.rounds,
        seats=seats,
        access_points=tuple(
            AccessPointSummary(point.name, point.certificate.hex()) for point in describe_access_points(access_points)
        ),
        model=scenario.learning.model,
        num_parameters=sum(math.prod(tensor.shape) for tensor in tensors),
        model_bytes=model_bytes,
        data=scenario.data.source,
        inputs=scenario.data.inputs,
        num_labels=scenario.partition.num_labels,
        scheduler=scenario.scheduler.name,
        aggregation=write_rule(aggregation),
        faulty=aggregation.faulty,
        quorum=quorum_size(ledger.quorum, len(seats)),
        quorum_rule=ledger.quorum.value,
        work=ledger.work.value,
        privacy=_describe_privacy(scenario),
        first_round=None,
        missing=missing,
        trust=tuple(_list_trust(scenario, num_access_points=len(access_points))),
    )


def _describe_privacy(scenario: Scenario) -> str | None:
    privacy = scenario.privacy
    if privacy.noise_multiplier is None:
        return None
    return f"noise {privacy.noise_multiplier:g}, clipped to {privacy.max_grad_norm:g}, delta {privacy.delta:g}"


def _describe_seat(number: int, signed: SignedCard | None) -> MemberSummary:
    if signed is None:
        return MemberSummary(number, None, None, None, None, None, None, False)
    card = signed.card
    return MemberSummary(
        member=number,
        name=card.name,
        fingerprint=key_fingerprint(card.public_key),
        public_key=card.public_key.hex(),
        samples=card.limits.samples,
        label_counts=card.label_counts,
        rate=None,
        is_signed=False,
    )


def _list_trust(scenario: Scenario, *, num_access_points: int) -> Iterator[str]:
    """List the assumptions that a member cannot verify, one sentence each."""
    num_members = scenario.clients.count
    quorum = quorum_size(scenario.ledger.quorum, num_members)
    liars = (num_members - 1) // 3 if scenario.ledger.quorum is QuorumRule.BFT else 0
    who = f"at most {liars} of the {num_members} members lie" if liars else "no member lies about blocks"
    yield f"{who}; {num_members - quorum} may be away"
    aggregation = scenario.learning.aggregation
    if aggregation.faulty:
        yield f"at most {aggregation.faulty} members of a round send models that are wrong on purpose"
    else:
        yield f"nobody sends models that are wrong on purpose: one can spoil a {aggregation.rule}"
    yield "everybody has the data that its card says; the counts of labels are public"
    if scenario.privacy.is_on:
        yield "everybody trains with the noise that is asked for: nobody else can see whether it does"
    if scenario.live.mode is LiveMode.MEASURED:
        yield "everybody reports its speed, channel and energy as they are"
    if num_access_points:
        yield "access points may read, delay and drop what passes; they cannot change or invent anything"
    for key, name in named_functions(scenario).items():
        yield f"the function {name} ({key}), which runs on your machine"
