"""Cost of a round in federations too large for all-to-all communication: committees, trees, and their failures.

These designs of `docs/scale.md` are not part of the protocol. They are computed from the same cost model, encodings and
quorums.
"""
