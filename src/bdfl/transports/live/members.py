"""Who may speak in a live network."""

from bdfl.ledger.chain import ChainState


def public_keys_of(chain: ChainState) -> list[bytes | None]:
    """The keys of those who may be listened to, by member number; none: no more."""
    return list(chain.public_keys)
