"""Host header check of local HTTP servers, against DNS rebinding."""

from ipaddress import ip_address

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
