"""The command as `python -m bdfl.cli`, where its script is not on the path."""

from bdfl.cli import main

main()
