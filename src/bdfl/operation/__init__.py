"""Operate a federation: keys, genesis, nodes, access points and their supervision."""
