"""Rounds of a network of real processes, and p2pfl's beside them on the same data."""
