"""Hostile peers: real attacks on real nodes, and their cost to the nodes."""
