"""Layout of a node's folder: chain, TLS files, quota and ownership."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509

from bdfl.errors import BdflError
from bdfl.identity import Signer
from bdfl.ledger.store import DATABASE_FILE, ChainStore
from bdfl.operation.fingerprint import key_fingerprint
from bdfl.operation.genesis_file import GenesisFile
from bdfl.operation.own_name import LOOPBACK
from bdfl.scenario import Scenario
from bdfl.transports.live.certificates import TlsFiles, common_name_of, issue_leaf, issuer_of, member_name, roots_pem
from bdfl.transports.live.certificates import write_tls as write_tls_files

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
    return genesis.genesis.model.size * (num_kept + 3) * (2 * len(genesis.public_keys) + 1)


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
    named = [address.rpartition(":")[0].removeprefix("[").removesuffix("]") for address in addresses]
    return list(dict.fromkeys([*(host for host in named if host not in ("", "0.0.0.0", "::")), LOOPBACK, "localhost"]))
