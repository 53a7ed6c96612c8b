"""The command `bdfl`: each subcommand calls one library function and shows what it returns."""

from bdfl.cli.commands import app

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line of this process."""
    app()
