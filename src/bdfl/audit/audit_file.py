"""An audit report as a file: JSON in one line, with its digest and optionally the auditor's signature."""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from bdfl.audit.chain_audit import FORMAT, AuditReport, Hex
from bdfl.encoding import Digest, Record, digest, encode
from bdfl.errors import BdflError, one_line, other_format
from bdfl.identity import Meaning, Place, Signer, is_signed, statement_digest

_MAX_SIZE = 256 * 2**20


class BadAudit(BdflError):
    """A file that is not an audit report, or was changed after it was written or signed."""


class AuditSignature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An auditor's signature of a report, in hexadecimal."""

    public_key: Hex
    signature: Annotated[str, Meta(pattern=r"\A[0-9a-f]{128}\Z")]


class AuditFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A report, the SHA-256 of its bytes in the file, and its signature if it has one."""

    report: AuditReport
    digest: Hex
    signature: AuditSignature | None

    def to_json(self) -> bytes:
        """Return the bytes of the file."""
        return msgspec.json.encode(self) + b"\n"


class _Attestation(Record, frozen=True):
    """Statement that an auditor signs, as AUDIT, at the height and on the tip that the report ends with."""

    report: Digest


class _Numbered(msgspec.Struct):
    format: int


class _Head(msgspec.Struct):
    """The part that files of all formats share."""

    report: _Numbered


def seal_audit(report: AuditReport, signer: Signer | None = None) -> AuditFile:
    """Return the file of a report, signed if a signer is given."""
    found = digest(msgspec.json.encode(report))
    if signer is None:
        return AuditFile(report, found.hex(), None)
    signature = signer.sign(Meaning.AUDIT, _place_of(report), _Attestation(found))
    return AuditFile(report, found.hex(), AuditSignature(signer.public_key.hex(), signature.hex()))


def read_audit(path: Path) -> AuditFile:
    """Read the file at `path`; raise `BadAudit` if any byte was changed or a signature is invalid."""
    try:
        with path.open("rb") as opened:
            data = opened.read(_MAX_SIZE + 1)
    except OSError as error:
        raise BadAudit(f"{path}: {error.strerror}, the JSON of an audit expected") from None
    if len(data) > _MAX_SIZE:
        raise BadAudit(f"{path}: more than {_MAX_SIZE} bytes, the JSON of an audit expected")
    try:
        return decode_audit(data)
    except BadAudit as error:
        raise BadAudit(f"{path}: {error}") from None


def decode_audit(data: bytes) -> AuditFile:
    """Decode the file; raise `BadAudit` if any byte was changed or a signature is not by the key it names."""
    try:
        number = msgspec.json.decode(data, type=_Head).report.format
        if number != FORMAT:
            raise BadAudit(other_format(number, FORMAT))
        file = msgspec.json.decode(data, type=AuditFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadAudit(f"{one_line(error)}; the JSON of an audit expected") from None
    own = digest(msgspec.json.encode(file.report))
    if file.digest != own.hex():
        raise BadAudit(f"changed after it was written: digest {file.digest[:16]} found, {own.hex()[:16]} expected")
    if file.to_json() != data:
        raise BadAudit("changed after it was written: spaces or order of another writer found, the same bytes expected")
    if file.signature is not None:
        public_key, signature = (bytes.fromhex(one) for one in msgspec.structs.astuple(file.signature))
        statement = statement_digest(Meaning.AUDIT, _place_of(file.report), encode(_Attestation(own)))
        if not is_signed(public_key, signature, statement):
            raise BadAudit(f"another signature found, one by the key {public_key.hex()[:16]} that it names expected")
    return file


def _place_of(report: AuditReport) -> Place:
    return Place(bytes.fromhex(report.chain), report.verified, bytes.fromhex(report.tip))
