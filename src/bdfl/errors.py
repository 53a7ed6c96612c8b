"""Errors that a caller may expect; each carries a one-line message with the expected and the found value."""

import json
from importlib.util import find_spec

from bdfl import __version__


class BdflError(Exception):
    """Base of all errors that are not bugs in bdfl: shown as one line, exit code 2."""


class Unexpected(BdflError):
    """A thing from outside that cannot be used: its name, the fault found and the form expected."""

    kind = ""  # stands before the name

    def __init__(self, name: str, found: str, expected: str) -> None:
        super().__init__(name, found, expected)
        self.name = name
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        return one_line(f"{self.kind}{self.name}: {self.found}, expected {self.expected}")


class InvalidProblem(BdflError):
    """A round's problem with wrong shapes, negative sizes or values that are not numbers."""


class InvalidDecision(BdflError):
    """A decision that does not have the form that its problem requires."""


class UnknownScheduler(BdflError):
    """A scheduler's name that is registered not at all or more than once."""


class BadSchedulerParameter(BdflError):
    """A parameter that a scheduler does not have, or a value that it does not accept."""


def printable(text: str) -> str:
    """Escape the control characters of untrusted text, except newlines, as in `\\x1b`: safe for a terminal."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode() for one in text)


def one_line(text: object) -> str:
    """Any text, such as the message of a library's error, as a single line that is safe for a terminal."""
    return printable(" ".join(str(text).split()))


def other_format(found: int, reads: int) -> str:
    """The message about a file in a format that this bdfl does not read; the same for every kind of file."""
    writer = "a newer" if found > reads else "an older"
    return f"format {found} found, bdfl {__version__} reads format {reads}: {writer} bdfl wrote it and can read it"


class MissingExtra(BdflError):
    """Packages of extras that are not installed."""


# Module of an extra: its name in messages, and the extra.
_OPTIONAL = {
    "PIL": ("Pillow", "learn"),
    "datasets": ("datasets", "data"),
    "flwr": ("Flower", "flower"),
    "flwr_datasets": ("flwr-datasets", "flower"),
    "gymnasium": ("Gymnasium", "gym"),
    "matplotlib": ("Matplotlib", "figures"),
    "mlflow": ("MLflow", "track"),
    "opacus": ("Opacus", "privacy"),
    "prometheus_client": ("prometheus-client", "live"),
    "psutil": ("psutil", "live"),
    "pyarrow": ("pyarrow", "trace"),
    "ray": ("Ray", "ray"),
    "sklearn": ("scikit-learn", "learn"),
    "sqlalchemy": ("SQLAlchemy", "track"),
    "starlette": ("Starlette", "explore"),
    "tensorboard": ("TensorBoard", "track"),
    "torch": ("PyTorch", "learn"),
    "uvicorn": ("uvicorn", "explore"),
    "zenoh": ("Zenoh", "live"),
}


def require(purpose: str, *modules: str) -> None:
    """Raise `MissingExtra`, with the install command, unless all `modules` can be imported."""
    missing = [module for module in modules if not _is_installed(module)]
    if missing:
        raise MissingExtra(_describe_missing(purpose, *missing))


def require_extra(purpose: str, *extras: str) -> None:
    """Call `require` for every module of these extras."""
    require(purpose, *(module for module, (_, extra) in _OPTIONAL.items() if extra in extras))


def describe_import_error(error: ModuleNotFoundError) -> str | None:
    """The message for a package of an extra that could not be imported; none for any other module."""
    module = error.name or ""
    return _describe_missing("this command", module) if module.partition(".")[0] in _OPTIONAL else None


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False
    except ValueError:  # imported already, but not from a file
        return True


def _describe_missing(purpose: str, *modules: str) -> str:
    names, extras = zip(*(_OPTIONAL[module.partition(".")[0]] for module in modules), strict=True)
    shown = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return f"{purpose} needs {shown}: {install_command(','.join(sorted(set(extras))))}"


def install_command(extras: str) -> str:
    """The command that installs these extras; for an editable install, to be run in the source folder [PEP 610]."""
    from importlib.metadata import PackageNotFoundError, distribution  # here: slow to import

    try:
        origin = distribution("bdfl").read_text("direct_url.json") or "{}"
    except PackageNotFoundError:  # imported from the sources, not installed at all
        origin = '{"dir_info": {"editable": true}}'
    if json.loads(origin).get("dir_info", {}).get("editable", False):
        return f"pip install -c constraints.txt -e '.[{extras}]'"
    return f"pip install 'bdfl[{extras}]'"
