"""What a round would cost in federations larger than everybody can talk to: committees, trees, and how they fail.

Nothing in here is part of the protocol: these are the designs of `docs/scale.md`, computed from the same cost model,
encodings and quorums.
"""
