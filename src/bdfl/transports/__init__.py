"""Drivers: they deliver events to nodes and carry out their effects, on a virtual clock or a real one."""
