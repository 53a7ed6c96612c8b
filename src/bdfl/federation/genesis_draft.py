"""A draft of a genesis: members' cards are collected, the genesis is made from them; also at once, on one machine.

In emulated mode the chain starts exactly like that of the simulated run with the same keys.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta

from bdfl.encoding import Record
from bdfl.errors import BdflError
from bdfl.experiment.training_run import Federated, prepare_run
from bdfl.federation.genesis_file import (
    MAX_GENESIS_SIZE,
    Cards,
    Certificates,
    GenesisFile,
    ModelBytes,
    ScenarioText,
    describe_access_points,
    members_of,
    mining_target_ms,
    read_scenario,
    sign_genesis,
    validate_genesis_file,
    write_scenario,
)
from bdfl.federation.member_card import (
    MAX_LABELS,
    MemberProfile,
    SignedCard,
    calibrate_here,
    emulated_profile,
    make_card,
    measured_profile,
    validate_card,
)
from bdfl.identity import Signer
from bdfl.learning.data import DataSet
from bdfl.learning.flower_trainer import FlowerClients
from bdfl.learning.partition import Partition
from bdfl.learning.trainer_pool import open_trainer
from bdfl.learning.weights import InvalidWeights, Layout, decode_weights, encode_weights
from bdfl.ledger.block import Tensor
from bdfl.ledger.genesis import draft_genesis, make_toolbox, plan_first_round, validate_server
from bdfl.scenario import LiveMode, Scenario, scenario_digest
from bdfl.scenario.files import named_functions
from bdfl.storage import read_record
from bdfl.transports.live.calibration import Calibration

# Draft of a genesis: the agreed scenario, the untrained model and the cards collected so far.


class BadDraft(BdflError):
    """A draft that is incomplete, or does not fit an addition."""


class Draft(Record, frozen=True):
    """The organiser's state before the genesis; it binds no member."""

    form: Literal["bdfl draft 1"]
    scenario: ScenarioText
    tensors: Annotated[tuple[Tensor, ...], Meta(max_length=4096)]
    initial_model: ModelBytes
    num_labels: Annotated[int, Meta(ge=1, le=MAX_LABELS)]
    cards: Cards  # in order of arrival
    access_points: Certificates

    @property
    def layout(self) -> Layout:
        return Layout(tuple(one.name for one in self.tensors), tuple(one.shape for one in self.tensors))


def begin_draft(scenario: Scenario, layout: Layout, initial_model: bytes, num_labels: int) -> Draft:
    """Start a draft without members."""
    validate_server(scenario, layout)
    tensors = tuple(map(Tensor, layout.names, layout.shapes))
    return Draft("bdfl draft 1", write_scenario(scenario), tensors, initial_model, num_labels, (), ())


def draft_again(file: GenesisFile) -> Draft:
    """Recreate the draft of a genesis without its members, for admissions after genesis."""
    num_labels = len(file.cards[0].card.label_counts)
    return Draft("bdfl draft 1", file.scenario, file.genesis.model.tensors, file.initial_model, num_labels, (), ())


def read_draft(path: Path, *, allowed: frozenset[str] = frozenset()) -> tuple[Draft, Scenario]:
    """Read a draft and its scenario, and validate both."""
    draft = read_record(path, Draft, "draft", MAX_GENESIS_SIZE)
    try:
        scenario = read_scenario(draft.scenario, allowed)
        decode_weights(draft.initial_model, draft.layout)
        for signed in draft.cards:
            validate_card(signed)
            _validate_fit(draft, scenario, signed)
        assign_cards(draft, scenario)
        describe_access_points(draft.access_points)
    except (BdflError, InvalidWeights) as error:
        raise BadDraft(f"{path}: {error}") from None
    return draft, scenario


def add_card(draft: Draft, scenario: Scenario, signed: SignedCard) -> Draft:
    """Add a member to the draft; a newer card replaces one of the same key."""
    validate_card(signed)
    _validate_fit(draft, scenario, signed)
    key = signed.card.public_key
    is_known = any(other.card.public_key == key for other in draft.cards)
    cards = [signed if other.card.public_key == key else other for other in draft.cards]
    grown = msgspec.structs.replace(draft, cards=tuple(cards if is_known else [*cards, signed]))
    assign_cards(grown, scenario)
    return grown


def add_access_point(draft: Draft, certificate: bytes) -> Draft:
    """Add an access point, given by its certificate in DER."""
    grown = msgspec.structs.replace(draft, access_points=(*draft.access_points, certificate))
    describe_access_points(grown.access_points)
    return grown


def assign_cards(draft: Draft, scenario: Scenario) -> list[SignedCard | None]:
    """Assign cards to member numbers: first cards that name a client, then the others in the free places.

    None marks a free place. Raises `BadDraft` for two cards with one client, or more cards than places.
    """
    seats: list[SignedCard | None] = [None] * scenario.clients.count
    for signed in draft.cards:
        client = signed.card.client
        if client is None:
            continue
        taken = seats[client]
        if taken is not None:
            raise BadDraft(f"client {client}: both {taken.card.name!r} and {signed.card.name!r}, one of them expected")
        seats[client] = signed
    for signed in draft.cards:
        if signed.card.client is None:
            if None not in seats:
                raise BadDraft(f"{len(draft.cards)} members, at most {len(seats)} expected, as clients.count says")
            seats[seats.index(None)] = signed
    return seats


def finish_draft(draft: Draft, scenario: Scenario) -> GenesisFile:
    """Build and validate the genesis, without signatures; raises `BadDraft` if members are missing.

    Participation rates follow from all members' labels; the first round is scheduled with them.
    """
    seats = assign_cards(draft, scenario)
    cards = tuple(signed for signed in seats if signed is not None)
    if len(cards) < len(seats):
        missing = ", ".join(str(number) for number, signed in enumerate(seats) if signed is None)
        raise BadDraft(f"{len(cards)} of {len(seats)} members: cards of members {missing} expected first")
    begun = draft_genesis(
        scenario,
        members_of(cards, scenario),
        draft.layout,
        draft.initial_model,
        target_ms=mining_target_ms(scenario),
        access_points=describe_access_points(draft.access_points),
        time_ms=int(time.time() * 1000),
    )
    file = GenesisFile(
        form="bdfl genesis 3",
        genesis=plan_first_round(begun, make_toolbox(scenario)),
        scenario=draft.scenario,
        initial_model=draft.initial_model,
        cards=cards,
        access_points=draft.access_points,
        signatures=(b"",) * len(cards),
    )
    validate_genesis_file(file, allowed=frozenset(named_functions(scenario).values()))
    return file


def _validate_fit(draft: Draft, scenario: Scenario, signed: SignedCard) -> None:
    card = signed.card
    if card.scenario != bytes.fromhex(scenario_digest(scenario)):
        raise BadDraft(f"card of {card.name!r}: made for another draft or scenario; make it again with this one")
    if len(card.label_counts) != draft.num_labels:
        found = f"{len(card.label_counts)} labels"
        raise BadDraft(f"card of {card.name!r}: {found}, data with {draft.num_labels} labels expected")
    if card.client is not None and card.client >= scenario.clients.count:
        raise BadDraft(f"card of {card.name!r}: client {card.client}, 0 to {scenario.clients.count - 1} expected")
    if card.client is None and scenario.live.mode is LiveMode.EMULATE:
        raise BadDraft(f"card of {card.name!r}: no client, but the scenario's clients are emulated: --client expected")


def agree_on_data(scenario: Scenario, data: DataSet | FlowerClients) -> Scenario:
    """Return the scenario with this data's number of labels, input form and input range."""
    partition = msgspec.structs.replace(scenario.partition, num_labels=data.num_labels)
    scenario = msgspec.structs.replace(scenario, partition=partition)
    if not isinstance(data, DataSet):
        return scenario
    low, high = data.input_range
    choice = msgspec.structs.replace(scenario.data, inputs=data.inputs_form, input_range=(low, high))
    return msgspec.structs.replace(scenario, data=choice)


def draft_federation(scenario: Scenario, data: DataSet | FlowerClients) -> Draft:
    """Draft a genesis with the scenario's untrained model; only shape and number of labels of the data matter."""
    nobody = Partition((), np.zeros((0, data.num_labels), dtype=np.int64))
    with open_trainer(scenario, _only_one(data) if isinstance(data, DataSet) else data, nobody) as trainer:
        initial = encode_weights(trainer.initial_weights(), trainer.layout)
        return begin_draft(scenario, trainer.layout, initial, data.num_labels)


def _only_one(data: DataSet) -> DataSet:
    return replace(
        data,
        train_inputs=data.train_inputs[:1],
        train_labels=data.train_labels[:1],
        test_inputs=data.test_inputs[:1],
        test_labels=data.test_labels[:1],
    )


def create_federation(
    scenario: Scenario,
    signers: Sequence[Signer],
    *,
    names: Sequence[str] | None = None,
    access_points: Sequence[bytes] = (),
    profiles: Sequence[MemberProfile] | None = None,
    federated: Federated | None = None,
) -> GenesisFile:
    """Create a federation of all clients of the scenario on one machine, signed by every member.

    By default each member holds its part of the scenario's data. Its speed is emulated or that of this machine, as the
    scenario says. `access_points` are certificates in DER; `federated` saves preparing the data again.
    """
    if len(signers) != scenario.clients.count:
        raise BadDraft(f"{len(signers)} keys given, {scenario.clients.count} expected, as clients.count says")
    federated = prepare_run(scenario) if federated is None else federated
    draft = draft_federation(scenario, federated.data)
    names = [f"member {number}" for number in range(len(signers))] if names is None else names
    profiles = find_profiles(federated, len(draft.initial_model)) if profiles is None else profiles
    for number, (signer, name, profile) in enumerate(zip(signers, names, profiles, strict=True)):
        draft = add_card(draft, scenario, make_card(signer, scenario, name, number, profile))
    for certificate in access_points:
        draft = add_access_point(draft, certificate)
    file = finish_draft(draft, scenario)
    for signer in signers:
        file = sign_genesis(file, signer)
    return file


def find_profiles(federated: Federated, model_size: int, calibration: Calibration | None = None) -> list[MemberProfile]:
    """Return all clients' profiles; in measured mode with this machine's speed, calibrated now unless given."""
    scenario = federated.scenario
    clients = range(scenario.clients.count)
    if scenario.live.mode is LiveMode.EMULATE:
        return [emulated_profile(federated, client) for client in clients]
    machine = calibrate_here(scenario, 0) if calibration is None else calibration
    counts = federated.partition.label_counts
    return [measured_profile(scenario, client, counts[client], machine, model_size) for client in clients]
