"""The chain: blocks, their law, their proof of work and where they are kept."""
