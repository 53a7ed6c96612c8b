"""Settings of a node, its identity and its files."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography import x509

from bdfl.addresses import LOOPBACK, split_address
from bdfl.errors import BdflError
from bdfl.federation.genesis_file import GenesisFile, read_genesis, read_scenario
from bdfl.federation.keys import key_fingerprint, load_key
from bdfl.federation.member_card import Card
from bdfl.federation.membership_change import ChangeFile, find_admission, find_number, read_admissions
from bdfl.identity import Signer
from bdfl.learning.personal import PERSONAL_FOLDER
from bdfl.ledger.chain_params import blob_limit
from bdfl.ledger.sqlite_store import DATABASE_FILE, ChainStore
from bdfl.scenario import Scenario
from bdfl.transports.live.certificates import TlsFiles, common_name_of, issue_leaf, issuer_of, member_name, roots_pem
from bdfl.transports.live.certificates import write_tls as write_tls_files
from bdfl.transports.live.training_process import DEALT, TrainingProcess

# Identity of a node: its operator's settings, its key, its genesis and the other members.


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


def begin_training(identity: Identity, data: str, flower: str | None, folder: Path | None = None) -> TrainingProcess:
    """Start the training process, which first checks the data against the agreed model and the card.

    Personal layers are kept in the node's `folder`, apart for each chain.
    """
    card = identity.card
    return TrainingProcess(
        own_learning(identity.scenario, flower),
        identity.number if card.client is None else card.client,
        data,
        model=identity.genesis.initial_model,
        label_counts=card.label_counts,
        personal=None if folder is None else folder / PERSONAL_FOLDER / identity.genesis.chain.hex()[:16],
    )


def num_awaited(identity: Identity, height: int) -> int:
    """Return the number of peers to wait for before taking part: all other founders at height 0, else none.

    Only founders start together. A member admitted later joins a running network, perhaps without its founders.
    """
    num_founders = len(identity.genesis.public_keys)
    return num_founders - 1 if not height and identity.number < num_founders else 0


# Layout of a node's folder: chain, TLS files, quota and ownership.

CHAIN_FOLDER = "chain"
TLS_FOLDER = "tls"
ROOTS_FILE = "roots.pem"  # in it
LEAF_FILE = "certificate.pem"


class WrongChain(BdflError):
    """A folder with the chain of another genesis, or of another member's node."""


def write_tls(
    folder: Path,
    genesis: GenesisFile,
    signer: Signer,
    number: int,
    hosts: Sequence[str] = (LOOPBACK, "localhost"),
    authorities: Mapping[int, bytes] | None = None,
) -> TlsFiles:
    """Write a new TLS key, its certificate issued by the member's own CA, and all trusted roots.

    `authorities` are the members' CAs by number, if there are more than in the genesis.
    """
    known = dict(enumerate(genesis.authorities)) if authorities is None else authorities
    key, certificate = issue_leaf(signer, known[number], member_name(number), hosts)
    return write_tls_files(folder / TLS_FOLDER, key, certificate, roots_of(genesis, known))


def roots_of(genesis: GenesisFile, authorities: Mapping[int, bytes] | None = None) -> bytes:
    """Return the trusted roots (PEM): the CAs of all members and the certificates of the access points."""
    known = genesis.authorities if authorities is None else authorities.values()
    return roots_pem([*known, *genesis.access_points])


def validate_owner(folder: Path, signer: Signer) -> None:
    """Raise `WrongChain` if the folder belongs to another key's node, with its votes and restart counter."""
    try:
        leaf = x509.load_pem_x509_certificate((folder / TLS_FOLDER / LEAF_FILE).read_bytes())
    except (OSError, ValueError):  # new folder, or a file that the next start replaces
        return
    owner, own = issuer_of(leaf), key_fingerprint(signer.public_key)
    if owner != own:
        found = f"the folder of {common_name_of(leaf)} with key {owner}"
        raise WrongChain(f"{folder}: {found}, that of key {own} expected; each node has a folder of its own")


def default_quota(genesis: GenesisFile, scenario: Scenario, last_height: int | None = None) -> int:
    """Return the default quota (bytes) of models that a node keeps.

    Enough for the retained rounds with twice the founders, and three more rounds: the one to be pruned, the open one,
    and its remains from before a restart.
    """
    num_kept = scenario.ledger.keep_blocks or max(last_height or 0, scenario.rounds)
    founding = genesis.genesis
    a_round = 2 * len(genesis.public_keys) * founding.model.size + blob_limit(founding)
    return a_round * (num_kept + 3)


@contextmanager
def open_chain(path: Path, genesis: GenesisFile, max_bytes: int | None = None) -> Iterator[ChainStore]:
    """Open the chain of a genesis in a folder, created if there is none; another genesis is rejected.

    `max_bytes` is the quota of its models.
    """
    if (path / DATABASE_FILE).is_file():
        store = ChainStore.open(path, max_bytes=max_bytes)
    else:
        store = ChainStore.create(path, genesis.genesis, genesis.initial_model, max_bytes=max_bytes)
    with store:
        if store.genesis != genesis.genesis:
            raise WrongChain(f"{path}: begins with another genesis, that of the file given expected")
        yield store


def hosts_of(addresses: Sequence[str]) -> list[str]:
    """Return the hosts of HOST:PORT addresses for a certificate, with loopback always included."""
    named = [split_address(address)[0] for address in addresses]
    return list(dict.fromkeys([*(host for host in named if host not in ("0.0.0.0", "::")), LOOPBACK, "localhost"]))
