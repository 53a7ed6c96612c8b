"""Schedulers of a round, its problem, and proofs of optimality: certificates and bounds."""
