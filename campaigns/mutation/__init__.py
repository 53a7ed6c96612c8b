"""Mutants of the protocol, the ledger and the stores: does any test notice?"""
