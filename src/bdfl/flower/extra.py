"""What the strategies need beside the rest."""

from bdfl.errors import install_command
from bdfl.learning.flower_client import MissingFlower


def validate_strategies() -> None:
    """Raises `MissingFlower` unless Flower is there, with its message API."""
    try:
        import flwr.serverapp.strategy  # noqa: F401
    except ImportError:
        raise MissingFlower(f"bdfl.flower needs Flower 1.41 or later: {install_command('flower')}") from None
