"""Simulated networks with injected faults, and the invariants ("laws") they must keep."""
