"""Faults and adversaries: what goes wrong in a simulated network, and the laws that must hold all the same."""
