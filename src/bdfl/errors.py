"""The errors a caller may expect; every one carries a single line that says what was expected and found."""

from bdfl import __version__


class BdflError(Exception):
    """Base of all errors that are the caller's to read, not ours to fix: shown as one line, exit code 2."""


class InvalidProblem(BdflError):
    """A round's problem that has no meaning: wrong shapes, negative sizes, not a number."""


class InvalidDecision(BdflError):
    """A decision that does not have the form its problem asks for."""


class UnknownScheduler(BdflError):
    """A scheduler's name that nothing, or more than one thing, answers to."""


class BadSchedulerParameter(BdflError):
    """A parameter that a scheduler does not have, or a value it does not take."""


def one_line(text: object) -> str:
    """What somebody else's error says, or any text, in a single line."""
    return " ".join(str(text).split())


def other_format(found: int, reads: int) -> str:
    """What is said of anything in another format than this bdfl reads, of every kind of file in the same words."""
    writer = "a newer" if found > reads else "an older"
    return f"format {found} found, bdfl {__version__} reads format {reads}: {writer} bdfl wrote it and can read it"


def install_command(extras: str) -> str:
    """What installs these extras, in the folder of the sources."""
    return f"pip install -c constraints.txt -e '.[{extras}]'"
