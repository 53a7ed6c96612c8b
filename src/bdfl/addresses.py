"""Network addresses: HOST:PORT, loopback, and the check of a Host header."""

from ipaddress import ip_address

from bdfl.errors import BdflError

# Host header check of local HTTP servers, against DNS rebinding.

LOOPBACK = "127.0.0.1"


def is_own_name(name: str, host: str, port: int) -> bool:
    """Return whether a Host header names the server at `host`; if it listens everywhere, any bare address does."""
    plain, colon, number = name.rpartition(":")
    plain = plain if colon and number == str(port) else name
    plain = plain.removeprefix("[").removesuffix("]")
    if plain in {host, "localhost", LOOPBACK, "::1"}:
        return True
    return host in ("0.0.0.0", "::") and _is_address(plain)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


# Parser for HOST:PORT addresses.

_MAX_PORT, _MAX_DIGITS = 65535, 5  # a number of thousands of digits is a ValueError


class BadAddress(BdflError):
    """Text that is not HOST:PORT."""


def split_address(address: str) -> tuple[str, int]:
    """Split HOST:PORT; an IPv6 host stands in brackets, an empty host means loopback."""
    host, colon, port = address.rpartition(":")
    is_plain = ":" not in host or (host.startswith("[") and host.endswith("]"))
    is_port = port.isascii() and port.isdigit() and len(port) <= _MAX_DIGITS and int(port) <= _MAX_PORT
    if not colon or not is_port or not is_plain:
        raise BadAddress(f"{address}: HOST:PORT expected, such as 192.0.2.7:7447")
    return host.removeprefix("[").removesuffix("]") or LOOPBACK, int(port)
