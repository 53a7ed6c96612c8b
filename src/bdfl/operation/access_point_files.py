"""Files of an access point: its private TLS key, and its certificate, which the genesis lists."""

import ssl
from collections.abc import Sequence
from pathlib import Path

from bdfl.errors import BdflError
from bdfl.operation.key_file import write_secret
from bdfl.operation.member_card import MAX_CERTIFICATE
from bdfl.operation.set_up_file import OWN_FOLDER
from bdfl.transports.live.certificates import make_ap_certificate, validate_access_point

KEY_FILE = "key.pem"
CERTIFICATE_FILE = "certificate.pem"
_MAX_SIZE = 2 * MAX_CERTIFICATE
_PEM_HEAD = b"-----BEGIN CERTIFICATE-----"


class BadCertificateFile(BdflError):
    """A certificate that cannot be written or read."""


def create_access_point(folder: Path, name: str, hosts: Sequence[str]) -> bytes:
    """Create a key and a certificate for these host names or addresses in a folder; return the certificate in DER.

    An existing key is never overwritten.
    """
    key, certificate, der = make_ap_certificate(name, hosts)
    try:
        folder.mkdir(mode=OWN_FOLDER, parents=True, exist_ok=True)
        write_secret(folder / KEY_FILE, key)
        (folder / CERTIFICATE_FILE).write_bytes(certificate)
    except OSError as error:
        raise BadCertificateFile(f"{folder}: {error.strerror}, a writable folder expected") from None
    return der


def read_certificate(path: Path) -> bytes:
    """Read a PEM or DER certificate, or that of an access point's folder; return it as DER once validated."""
    file = path / CERTIFICATE_FILE if path.is_dir() else path
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_SIZE + 1)
    except OSError as error:
        raise BadCertificateFile(f"{file}: {error.strerror}, a certificate expected") from None
    if len(data) > _MAX_SIZE:
        raise BadCertificateFile(f"{file}: more than {_MAX_SIZE} bytes, a single certificate expected")
    if data.startswith(_PEM_HEAD):
        try:
            data = ssl.PEM_cert_to_DER_cert(data.decode("ascii"))
        except ValueError:
            raise BadCertificateFile(f"{file}: damaged, a certificate in PEM expected") from None
    try:
        validate_access_point(data)
    except BdflError as error:
        raise BadCertificateFile(f"{file}: {error}") from None
    return data
