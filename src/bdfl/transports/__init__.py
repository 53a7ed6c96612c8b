"""Drivers: what carries a node's effects out and brings it events, on a virtual clock or a real one."""
