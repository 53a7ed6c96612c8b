"""Mutation testing of the protocol, the ledger and the stores."""
