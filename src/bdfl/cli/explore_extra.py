"""What the explorer needs beside the rest, asked for before anything is opened."""

from bdfl.errors import BdflError, install_command


class MissingExplore(BdflError):
    """The extra `explore` is not installed."""


def validate_explore_extra() -> None:
    """Raises `MissingExplore` unless everything that the explorer's server needs is there."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise MissingExplore(f"the explorer needs starlette and uvicorn: {install_command('explore')}") from None
