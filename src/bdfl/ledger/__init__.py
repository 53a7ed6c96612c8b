"""The chain: blocks, validity rules, proof of work and stores."""
