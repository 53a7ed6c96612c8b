"""Explorer: runs, chains and live networks in a browser. Its server imports no scipy, pyarrow or torch."""

from bdfl.errors import BdflError


class CannotOpen(BdflError):
    """A path or an address that the explorer cannot show."""


class NotHere(BdflError):
    """A requested run, block or client that does not exist."""


class BadRequest(BdflError):
    """An invalid parameter, or a value outside its limits."""


class Busy(BdflError):
    """An answer that takes too long, or too many waiting requests."""
