"""Learning side of the federation: who holds which data, and what follows from it."""
