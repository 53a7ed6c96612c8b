"""What a live network needs beside the rest, asked for before anything is written."""

from bdfl.errors import BdflError, install_command


class MissingLive(BdflError):
    """The extra `live` is not installed."""


def validate_live_extra() -> None:
    """Raises `MissingLive` unless everything that real nodes need is there."""
    try:
        import prometheus_client  # noqa: F401
        import psutil  # noqa: F401
        import zenoh  # noqa: F401
    except ImportError:
        needed = "zenoh, psutil and prometheus-client"
        raise MissingLive(f"a live network needs {needed}: {install_command('learn,live')}") from None
