"""The errors a caller may expect; every one carries a single line that says what was expected and found."""

import json
from importlib.util import find_spec

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


def printable(text: str) -> str:
    """Text from anywhere as a terminal may show it: control characters but newlines become escapes such as `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode() for one in text)


def one_line(text: object) -> str:
    """What somebody else's error says, or any text, in a single line that a terminal may show."""
    return printable(" ".join(str(text).split()))


def other_format(found: int, reads: int) -> str:
    """What is said of anything in another format than this bdfl reads, of every kind of file in the same words."""
    writer = "a newer" if found > reads else "an older"
    return f"format {found} found, bdfl {__version__} reads format {reads}: {writer} bdfl wrote it and can read it"


class MissingExtra(BdflError):
    """Packages that come with extras which are not installed."""


# Module of an extra: its name in messages, and the extra that brings it.
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
    """Raises `MissingExtra` unless all `modules` can be imported; it names what is missing and how to install it."""
    missing = [module for module in modules if not _is_installed(module)]
    if missing:
        raise MissingExtra(_describe_missing(purpose, *missing))


def require_extra(purpose: str, *extras: str) -> None:
    """As `require`, for every module of these extras."""
    require(purpose, *(module for module, (_, extra) in _OPTIONAL.items() if extra in extras))


def describe_import_error(error: ModuleNotFoundError) -> str | None:
    """The one line for a package of an extra that could not be imported; none for any other module."""
    module = error.name or ""
    return _describe_missing("this command", module) if module.partition(".")[0] in _OPTIONAL else None


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it would be in
        return False
    except ValueError:  # imported already, by other means than a file
        return True


def _describe_missing(purpose: str, *modules: str) -> str:
    names, extras = zip(*(_OPTIONAL[module.partition(".")[0]] for module in modules), strict=True)
    shown = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return f"{purpose} needs {shown}: {install_command(','.join(sorted(set(extras))))}"


def install_command(extras: str) -> str:
    """The command that adds these extras: in the folder of the sources for an editable install [PEP 610]."""
    from importlib.metadata import PackageNotFoundError, distribution  # here: slow to import

    try:
        origin = distribution("bdfl").read_text("direct_url.json") or "{}"
    except PackageNotFoundError:  # imported from the sources, not installed at all
        origin = '{"dir_info": {"editable": true}}'
    if json.loads(origin).get("dir_info", {}).get("editable", False):
        return f"pip install -c constraints.txt -e '.[{extras}]'"
    return f"pip install 'bdfl[{extras}]'"
