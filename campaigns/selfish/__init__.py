"""Selfish members: their gain and their cost, in simulated networks and in a live one."""
