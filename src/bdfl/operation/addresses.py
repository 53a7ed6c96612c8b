"""Parser for HOST:PORT addresses."""

from bdfl.errors import BdflError
from bdfl.operation.own_name import LOOPBACK

_MAX_PORT = 65535


class BadAddress(BdflError):
    """Text that is not HOST:PORT."""


def split_address(address: str) -> tuple[str, int]:
    """Split HOST:PORT; an IPv6 host stands in brackets, an empty host means loopback."""
    host, colon, port = address.rpartition(":")
    is_plain = ":" not in host or (host.startswith("[") and host.endswith("]"))
    if not colon or not port.isascii() or not port.isdigit() or int(port) > _MAX_PORT or not is_plain:
        raise BadAddress(f"{address}: HOST:PORT expected, such as 192.0.2.7:7447")
    return host.removeprefix("[").removesuffix("]") or LOOPBACK, int(port)
