"""Fault injection into networks of real processes (kills, freezes, disks, clocks, links), with invariants checked."""
