"""TLS certificates: each member's signing key certifies a separate TLS key of its own.

They only keep strangers out. Messages are authenticated by MAC and signature, never by their connection, because a
member can certify any name.
"""

import ipaddress
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bdfl.errors import BdflError
from bdfl.identity import Signer
from bdfl.storage import OWN_FOLDER, replace_file

MAX_CERTIFICATE_SIZE = 8192
AUTHORITY_DAYS = 3650
LEAF_DAYS = 365
EARLY = timedelta(days=1)  # tolerated clock skew
_Loaded = TypeVar("_Loaded")
_MAX_NAME = 64  # of a common name, by X.520


class BadCertificate(BdflError):
    """A certificate or TLS key is invalid."""


@dataclass(frozen=True)
class TlsFiles:
    """Paths of the TLS files of a node or access point, all PEM."""

    key: Path  # of the leaf; 0600
    certificate: Path  # the leaf
    roots: Path  # certificates of all members and access points


def member_name(number: int) -> str:
    """Return the common name of a member's leaf."""
    return f"member-{number}"


def make_authority(signer: Signer, name: str) -> bytes:
    """Return a CA certificate (DER) of a member's signing key for TLS keys, valid for ten years."""
    public_key = Ed25519PublicKey.from_public_bytes(signer.public_key)
    draft = _draft(name, name, None, AUTHORITY_DAYS).public_key(public_key)
    draft = draft.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return signer.sign_certificate(draft).public_bytes(serialization.Encoding.DER)


def issue_leaf(
    signer: Signer,
    authority: bytes,
    common_name: str,
    hosts: Iterable[str] = (),
    at: datetime | None = None,
) -> tuple[bytes, bytes]:
    """Generate a TLS key and its certificate under the authority (DER); return both as PEM."""
    issuer = common_name_of(validate_authority(authority, signer.public_key, at))
    key = ec.generate_private_key(ec.SECP256R1())
    draft = _leaf_draft(common_name, issuer, hosts, at, LEAF_DAYS).public_key(key.public_key())
    return _key_pem(key), signer.sign_certificate(draft).public_bytes(serialization.Encoding.PEM)


def make_ap_certificate(name: str, hosts: Iterable[str] = ()) -> tuple[bytes, bytes, bytes]:
    """Generate an access point's TLS key (PEM) and its self-signed certificate (PEM and DER)."""
    key = ec.generate_private_key(ec.SECP256R1())
    draft = _leaf_draft(name, name, hosts, None, AUTHORITY_DAYS).public_key(key.public_key())
    certificate = draft.sign(key, hashes.SHA256())
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    return _key_pem(key), pem, certificate.public_bytes(serialization.Encoding.DER)


def validate_authority(data: bytes, public_key: bytes, at: datetime | None = None) -> x509.Certificate:
    """Return a member's authority (DER) if it is valid now, self-signed and of that Ed25519 key."""
    certificate = _validate_self_signed(data, at)
    found = certificate.public_key()
    if not isinstance(found, Ed25519PublicKey) or found.public_bytes_raw() != public_key:
        raise BadCertificate(f"{common_name_of(certificate)}: certifies another key than {public_key.hex()}")
    if not is_authority(certificate):
        raise BadCertificate(f"{common_name_of(certificate)}: may not certify others, a CA certificate expected")
    return certificate


def validate_access_point(data: bytes, at: datetime | None = None) -> x509.Certificate:
    """Return an access point's certificate (DER) if it is valid now, self-signed and no authority."""
    certificate = _validate_self_signed(data, at)
    if is_authority(certificate):
        raise BadCertificate(f"{common_name_of(certificate)}: a CA certificate given, an access point's own expected")
    return certificate


def validate_tls(files: TlsFiles, at: datetime | None = None) -> x509.Certificate:
    """Return the leaf if it is valid now, matches its key, and is issued by one of the roots."""
    certificate = read_leaf(files)
    _validate_period(certificate, at)
    key = _load(files.key, lambda data: serialization.load_pem_private_key(data, None), "private key")
    if key.public_key() != certificate.public_key():
        raise BadCertificate(f"{files.certificate}: of another key than {files.key}")
    roots = read_roots(files.roots)
    if not any(is_issued_by(certificate, root) for root in roots):
        raise BadCertificate(f"{files.certificate}: certified by none of the {len(roots)} roots in {files.roots}")
    return certificate


def read_leaf(files: TlsFiles) -> x509.Certificate:
    """Read the leaf without validating it."""
    return _load(files.certificate, x509.load_pem_x509_certificate, "certificate")


def read_roots(path: Path) -> list[x509.Certificate]:
    """Read all certificates in a file of roots."""
    return _load(path, x509.load_pem_x509_certificates, "certificates")


def roots_pem(certificates: Sequence[bytes]) -> bytes:
    """Return a file of roots (PEM) from the certificates (DER) of all members and access points."""
    return b"".join(
        x509.load_der_x509_certificate(data).public_bytes(serialization.Encoding.PEM) for data in certificates
    )


def write_tls(folder: Path, key: bytes, certificate: bytes, roots: bytes) -> TlsFiles:
    """Write a leaf's key (0600), the leaf and the roots, all PEM, into a folder; create it if needed."""
    folder.mkdir(mode=OWN_FOLDER, parents=True, exist_ok=True)
    files = TlsFiles(folder / "key.pem", folder / "certificate.pem", folder / "roots.pem")
    replace_file(files.key, key, mode=0o600)
    files.certificate.write_bytes(certificate)
    files.roots.write_bytes(roots)
    return files


def common_name_of(certificate: x509.Certificate) -> str:
    """Return the common name of a certificate's subject; empty if it has none."""
    return _common_name(certificate.subject)


def issuer_of(certificate: x509.Certificate) -> str:
    """Return the common name of the issuer. For a member's leaf this is the fingerprint of the member's key."""
    return _common_name(certificate.issuer)


def _common_name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def is_authority(certificate: x509.Certificate) -> bool:
    """Return whether it is a CA certificate: a member's authority is, an access point's certificate is not."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


def _draft(name: str, issuer: str, at: datetime | None, days: int) -> x509.CertificateBuilder:
    if not 1 <= len(name) <= _MAX_NAME:
        raise BadCertificate(f"name of {len(name)} characters given, 1 to {_MAX_NAME} expected")
    begin = _now(at) - EARLY
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + EARLY + timedelta(days=days))
    )


def _leaf_draft(
    name: str, issuer: str, hosts: Iterable[str], at: datetime | None, days: int
) -> x509.CertificateBuilder:
    names = [x509.DNSName(name), *map(_host, hosts)]
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return (
        _draft(name, issuer, at, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _validate_self_signed(data: bytes, at: datetime | None) -> x509.Certificate:
    if len(data) > MAX_CERTIFICATE_SIZE:
        raise BadCertificate(f"certificate of {len(data)} bytes given, at most {MAX_CERTIFICATE_SIZE} expected")
    try:
        certificate = x509.load_der_x509_certificate(data)
        is_own = is_issued_by(certificate, certificate)
    except (ValueError, UnsupportedAlgorithm):
        raise BadCertificate("no certificate in DER") from None
    if not is_own:
        raise BadCertificate(f"{common_name_of(certificate)}: not signed by its own key")
    _validate_period(certificate, at)
    return certificate


def _validate_period(certificate: x509.Certificate, at: datetime | None) -> None:
    now, begin, end = _now(at), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begin <= now <= end:
        period = f"valid from {begin:%Y-%m-%d} to {end:%Y-%m-%d}"
        advice = "it expired: a new card and genesis are needed" if now > end else "is the clock right?"
        raise BadCertificate(f"{common_name_of(certificate)}: {period}, now is {now:%Y-%m-%d %H:%M}; {advice}")


def is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Return whether a certificate names this issuer and is signed by its key."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _load(path: Path, load: Callable[[bytes], _Loaded], what: str) -> _Loaded:
    try:
        return load(path.read_bytes())
    except OSError as error:
        raise BadCertificate(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise BadCertificate(f"{path}: no {what} in PEM") from None


def _now(at: datetime | None) -> datetime:
    return datetime.fromtimestamp(time.time(), UTC) if at is None else at
