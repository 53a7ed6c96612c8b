"""Identity of a node: its operator's settings, its key, its genesis and the other members."""

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
    """A node that cannot be started with these settings."""


@dataclass(frozen=True)
class NodeSettings:
    """Operator's settings of a node; the genesis determines everything else."""

    genesis: Path
    key: Path
    folder: Path
    data: str = DEALT  # or a file or folder
    flower: str | None = None  # the member's own Flower client instead of the one that the genesis names
    listen: tuple[str, ...] = ()  # host:port
    peers: tuple[str, ...] = ()
    metrics: tuple[str, int] | None = (LOOPBACK, 0)  # port 0: any
    last_height: int | None = None  # none: the rounds agreed on
    quota_bytes: int | None = None  # of models that are kept; none: enough for the rounds agreed on
    evaluates: bool = False
    records: bool = True  # all events, for a replay
    is_unsigned_allowed: bool = False
    allowed: frozenset[str] = frozenset()  # functions of the scenario's author, allowed to run
    admissions: tuple[Path, ...] = ()  # of members admitted after genesis, possibly including this one


@dataclass(frozen=True)
class Identity:
    """A node's key, number, genesis and scenario."""

    signer: Signer
    genesis: GenesisFile
    scenario: Scenario
    number: int
    admissions: tuple[ChangeFile, ...]  # of members admitted after genesis

    @property
    def card(self) -> Card:
        """The member's own card."""
        newcomer = find_admission(self.admissions, self.signer.public_key)
        return (self.genesis.cards[self.number] if newcomer is None else newcomer[1]).card


def identify(settings: NodeSettings) -> Identity:
    """Determine a node's identity from its settings; raises a `BdflError` if it may not take part."""
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
    """Return the agreed scenario, with the member's own Flower client if it has one."""
    if flower is None:
        return scenario
    return msgspec.structs.replace(scenario, learning=msgspec.structs.replace(scenario.learning, flower=flower))


def begin_training(identity: Identity, data: str, flower: str | None) -> TrainingProcess:
    """Start the training process, which first checks the data against the agreed model and the card."""
    card = identity.card
    return TrainingProcess(
        own_learning(identity.scenario, flower),
        identity.number if card.client is None else card.client,
        data,
        model=identity.genesis.initial_model,
        label_counts=card.label_counts,
    )


def num_awaited(identity: Identity, height: int) -> int:
    """Return the number of peers to wait for before taking part: all other founders at height 0, else none.

    Only founders start together. A member admitted later joins a running network, perhaps without its founders.
    """
    num_founders = len(identity.genesis.public_keys)
    return num_founders - 1 if not height and identity.number < num_founders else 0
