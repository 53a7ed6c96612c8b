"""Simulated networks in trouble, and the laws that must hold all the same."""
