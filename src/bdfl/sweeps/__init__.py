"""Sweeps: many runs from one file over scenario keys, schedulers and seeds, on a machine or a cluster, in one table."""
