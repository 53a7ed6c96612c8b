"""Blockchain-aided decentralised federated learning over wireless networks."""

__version__ = "0.1.0"
