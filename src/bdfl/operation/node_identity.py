"""Who a node is: what its operator decided, its key, its genesis, and who the others are."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from bdfl.errors import BdflError
from bdfl.identity import Signer
from bdfl.operation.genesis_file import GenesisFile, read_genesis
from bdfl.operation.key_file import load_key
from bdfl.operation.live_scenario import read_scenario
from bdfl.operation.member_card import Card
from bdfl.operation.member_change import ChangeFile
from bdfl.operation.newcomers import find_admission, find_number, read_admissions
from bdfl.operation.own_name import LOOPBACK
from bdfl.scenario import Scenario
from bdfl.transports.live.training_process import DEALT, TrainingProcess


class NotRunnable(BdflError):
    """A node that cannot be started with what was given."""


@dataclass(frozen=True)
class NodeSettings:
    """What an operator decides about a node; all else is agreed on in its genesis."""

    genesis: Path
    key: Path
    folder: Path
    data: str = DEALT  # or a file or folder
    flower: str | None = None  # an own Flower client instead of the one that the genesis names
    listen: tuple[str, ...] = ()  # host:port
    peers: tuple[str, ...] = ()
    metrics: tuple[str, int] | None = (LOOPBACK, 0)  # port 0: any
    last_height: int | None = None  # none: the rounds agreed on
    quota_bytes: int | None = None  # of models that are kept; none: enough for the rounds agreed on
    evaluates: bool = False
    records: bool = True  # all events, for a replay
    is_unsigned_allowed: bool = False
    allowed: frozenset[str] = frozenset()  # functions of the scenario's author that may run
    admissions: tuple[Path, ...] = ()  # of members who came later, this one perhaps among them


@dataclass(frozen=True)
class Identity:
    """Who a node is, and who the others are."""

    signer: Signer
    genesis: GenesisFile
    scenario: Scenario
    number: int
    admissions: tuple[ChangeFile, ...]  # of members who came later

    @property
    def card(self) -> Card:
        """What the member said of itself."""
        newcomer = find_admission(self.admissions, self.signer.public_key)
        return (self.genesis.cards[self.number] if newcomer is None else newcomer[1]).card


def identify(settings: NodeSettings) -> Identity:
    """Who a node with these settings would be; raises a `BdflError` where it may not take part."""
    signer = load_key(settings.key)
    allowed = settings.allowed | ({settings.flower} if settings.flower is not None else set())
    genesis = read_genesis(settings.genesis, allowed=allowed)
    admissions = read_admissions(settings.folder, settings.admissions, genesis)
    number = find_number(genesis, admissions, signer.public_key)
    if number is None:
        raise NotRunnable(f"{settings.key}: not the key of a member of {settings.genesis}, nor of an --admission")
    missing = genesis.missing_signatures
    if missing and not settings.is_unsigned_allowed:
        who = ", ".join(map(str, missing))
        raise NotRunnable(f"{settings.genesis}: not signed by {who}; all must, or --unsigned to begin without them")
    if len(genesis.public_keys) > 1 and not settings.listen and not settings.peers:
        raise NotRunnable("node: neither --listen nor --peer given, one expected: nobody could be reached")
    scenario = read_scenario(genesis.scenario, allowed)
    if settings.flower is not None and scenario.learning.flower is None:
        raise NotRunnable(
            f"--flower: {settings.flower} given, but the members agreed on a model without Flower clients"
        )
    return Identity(signer, genesis, scenario, number, admissions)


def own_learning(scenario: Scenario, flower: str | None) -> Scenario:
    """The scenario as a node trains by it: what was agreed on, with its own Flower client if it brings one."""
    if flower is None:
        return scenario
    return msgspec.structs.replace(scenario, learning=msgspec.structs.replace(scenario.learning, flower=flower))


def begin_training(identity: Identity, data: str, flower: str | None) -> TrainingProcess:
    """The node's training process, which first finds out whether its data fit the agreed model and its card."""
    card = identity.card
    return TrainingProcess(
        own_learning(identity.scenario, flower),
        identity.number if card.client is None else card.client,
        data,
        model=identity.genesis.initial_model,
        label_counts=card.label_counts,
    )


def num_awaited(identity: Identity, height: int) -> int:
    """How many others a node with so many blocks waits for before it takes part: the other founders, or nobody.

    Only founders begin together. Who came later finds a network that goes on, perhaps without those who founded it.
    """
    num_founders = len(identity.genesis.public_keys)
    return num_founders - 1 if not height and identity.number < num_founders else 0
