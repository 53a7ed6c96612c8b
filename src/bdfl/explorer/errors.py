"""Why a question to the explorer has no answer."""

from bdfl.errors import BdflError


class CannotOpen(BdflError):
    """A path or an address that is nothing the explorer can show."""


class NotHere(BdflError):
    """A run, block or client that was asked for and is not there."""


class BadRequest(BdflError):
    """A parameter that has no meaning, or a value outside its limits."""


class Busy(BdflError):
    """An answer that takes too long, or too many that are waited for."""
