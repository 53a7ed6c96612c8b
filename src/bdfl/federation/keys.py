"""Key files, and fingerprints of public keys as words."""

import os
import stat
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from bdfl.encoding import digest
from bdfl.errors import BdflError
from bdfl.identity import Signer
from bdfl.storage import open_regular

# A member's private signing key, in a file that only its owner can read.

SECRET_MODE = 0o600
_MAX_SIZE = 4096  # bytes; a key has about 120


class BadKeyFile(BdflError):
    """A key file that cannot be created or read, or is not secret."""


def create_key(path: Path) -> Signer:
    """Create a key and write it to a new file as PEM (PKCS 8); an existing file is never overwritten."""
    key = Ed25519PrivateKey.generate()
    write_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return Signer(key.private_bytes_raw())


def load_key(path: Path) -> Signer:
    """Load a key; raises `BadKeyFile` unless the file is this user's and inaccessible to others."""
    data = read_secret(path)
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise BadKeyFile(f"{path}: no private key in PEM without a password, make one with bdfl keygen") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise BadKeyFile(f"{path}: a key of another kind, an Ed25519 key as bdfl keygen makes it expected")
    return Signer(key.private_bytes_raw())


def write_secret(path: Path, data: bytes) -> None:
    """Write a new file that only this user can read, with fsync; raises `BadKeyFile` if it exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(path, flags, SECRET_MODE)
    except FileExistsError:
        raise BadKeyFile(f"{path}: exists already, and a key is never overwritten; choose another file") from None
    except OSError as error:
        raise BadKeyFile(f"{path}: {error.strerror}, a new file in a writable folder expected") from None
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            path.unlink()
        raise BadKeyFile(f"{path}: {error.strerror}, the key is not written") from None


def read_secret(path: Path) -> bytes:
    """Read a small file; raises `BadKeyFile` unless it is this user's and inaccessible to others."""
    try:
        with open_regular(path, _MAX_SIZE) as file:
            _validate_secrecy(path, os.fstat(file.fileno()))
            return file.read()
    except OSError as error:
        raise BadKeyFile(f"{path}: {error.strerror}, a key file expected; bdfl keygen makes one") from None


def _validate_secrecy(path: Path, found: os.stat_result) -> None:
    if not hasattr(os, "geteuid"):  # Windows: mode bits mean nothing
        return
    if found.st_uid != os.geteuid():
        raise BadKeyFile(f"{path}: belongs to user {found.st_uid}, a key of your own (user {os.geteuid()}) expected")
    mode = stat.S_IMODE(found.st_mode)
    if mode & ~SECRET_MODE:
        raise BadKeyFile(f"{path}: mode {mode:04o}, others may use the key; make it yours alone: chmod 600 {path}")


# Human-readable fingerprints: proquints of five letters for two bytes, alternating consonants and vowels.

_CONSONANTS = "bdfghjklmnprstvz"  # four bits each
_VOWELS = "aiou"  # two bits each
_KEY_BYTES = 8
_GROUP = 8  # hexadecimal digits


def speakable(data: bytes) -> str:
    """Encode an even number of bytes as proquints, such as `lusab-babad`, one for every two bytes."""
    return "-".join(_word(int.from_bytes(data[place : place + 2])) for place in range(0, len(data), 2))


def key_fingerprint(public_key: bytes) -> str:
    """Return four words that identify a public key: the first 64 bits of its digest."""
    return speakable(digest(public_key)[:_KEY_BYTES])


def in_groups(data: bytes) -> str:
    """Format a digest in hexadecimal, in groups of eight."""
    text = data.hex()
    return " ".join(text[place : place + _GROUP] for place in range(0, len(text), _GROUP))


def _word(value: int) -> str:
    first, second, third = (_CONSONANTS[value >> shift & 15] for shift in (12, 6, 0))
    return f"{first}{_VOWELS[value >> 10 & 3]}{second}{_VOWELS[value >> 4 & 3]}{third}"
