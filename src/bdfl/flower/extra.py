"""What the strategies need beside the rest."""

from bdfl.errors import BdflError, install_command


class MissingFlower(BdflError, ImportError):
    """The extra `flower` is not installed."""


def validate_flower() -> None:
    """Raises `MissingFlower` unless Flower is there, with its message API."""
    try:
        import flwr.serverapp.strategy  # noqa: F401
    except ImportError:
        raise MissingFlower(f"bdfl.flower needs Flower 1.41 or later: {install_command('flower')}") from None
