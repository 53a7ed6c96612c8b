"""The command as `python -m bdfl.cli`, for use without its script."""

from bdfl.cli import main

main()
