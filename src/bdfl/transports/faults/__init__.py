"""Fault injection and Byzantine members in a simulated network, and the invariants that must still hold."""
