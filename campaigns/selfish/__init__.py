"""Selfish members: what they gain and what they cost, in simulated networks and in a live one."""
