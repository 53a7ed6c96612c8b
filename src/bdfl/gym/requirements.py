"""What the environment needs beside the rest, asked for before anything else is imported."""

from bdfl.errors import BdflError, install_command


class MissingGymnasium(BdflError):
    """The extra `gym` is not installed."""


def validate_gymnasium() -> None:
    """Raises `MissingGymnasium` unless Gymnasium is there."""
    try:
        import gymnasium  # noqa: F401
    except ImportError:
        raise MissingGymnasium(f"bdfl.gym needs Gymnasium: {install_command('gym')}") from None
