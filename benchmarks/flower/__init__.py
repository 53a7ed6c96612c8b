"""bdfl beside Flower's own simulation: the same client code, data and rounds, in one run."""
