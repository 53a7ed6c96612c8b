"""Hostile peers: real connections that send what they should not to real nodes, and what that costs the nodes."""
