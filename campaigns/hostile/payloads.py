"""Payload generators of a hostile member, valid but for the intended fault: own key, overheard messages."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from bdfl.encoding import DIGEST_SIZE, SIGNATURE_SIZE, Record, decode, encode
from bdfl.identity import MAC_SIZE, Signer
from bdfl.ledger.block import Kind, SignedUpdate, SignedVote, Vote
from bdfl.protocol.messages import DecidedWanted, Gossip, Message, decode_message, encode_message
from bdfl.transports.live.admission import MAX_REQUEST_SIZE
from bdfl.transports.live.envelope import (
    MAX_INCARNATION,
    Envelope,
    EnvelopeWriter,
    Keyring,
    PieceRequest,
    Purpose,
    overhead,
)
from bdfl.transports.live.zenoh_config import Keys
from campaigns.hostile.attacks import IMPERSONATED

_POOL = 64  # payloads reused where nothing in them must be fresh
_MAX_ENVELOPE = 2**23
_FAR = 1000  # rounds


@dataclass(frozen=True)
class Shot:
    """One payload to send."""

    key: str
    data: bytes
    is_query: bool = False


class NegativeRequest(Record, frozen=True):
    """A request for a piece with an arbitrary, even negative, offset."""

    blob: bytes
    offset: int
    length: int


@dataclass(frozen=True)
class Arsenal:
    """Keys, victims and overheard messages of an attacker."""

    keys: Keys
    chain: bytes
    member: int
    signer: Signer
    public_keys: Sequence[bytes]  # of all members
    victims: Sequence[int]
    heard: Sequence[bytes]  # genuine broadcast envelopes of other members
    find_height: Callable[[], int]  # height in progress at the other members
    incarnation: int  # restart counter, increased per attack so that message counters are fresh
    max_message_size: int
    dice: random.Random

    def load(self, attack: str) -> Callable[[int], Shot]:
        """Return a function that makes the n-th payload of an attack."""
        makers: dict[str, Callable[[], Callable[[int], Shot]]] = {
            "garbage": self._garbage,
            "oversized": self._oversized,
            "replayed": self._replayed,
            "repeated": self._repeated,
            "forged-sender": self._forged_sender,
            IMPERSONATED: self._impersonated,
            "forged-mac": self._forged_mac,
            "wrong-chain": self._wrong_chain,
            "wrong-round": self._wrong_round,
            "false-statements": self._false_statements,
            "begging": self._begging,
            "no-such-blob": self._no_such_blob,
            "bad-offset": self._bad_offset,
            "garbage-requests": self._garbage_requests,
        }
        return makers[attack]()

    def _garbage(self) -> Callable[[int], Shot]:
        return _cycle([Shot(self._own_key(n), self._noise(1, 2048)) for n in range(_POOL)])

    def _oversized(self) -> Callable[[int], Shot]:
        data = bytes(self.max_message_size + overhead(len(self.public_keys)) + 1)
        return _cycle([Shot(self.keys.to_one(victim, self.member), data) for victim in self.victims])

    def _replayed(self) -> Callable[[int], Shot]:
        shots = []
        for data in self.heard:
            sender = decode(data, Envelope, _MAX_ENVELOPE).sender
            shots += [Shot(self.keys.to_all(self.member), data), Shot(self.keys.to_all(sender), data)]
        return _cycle(shots)

    def _repeated(self) -> Callable[[int], Shot]:
        data = self.writer.write(Purpose.MESSAGE, None, self._message(0, DecidedWanted()))
        return _cycle([Shot(self.keys.to_all(self.member), data)])

    def _forged_sender(self) -> Callable[[int], Shot]:
        shots = []
        for victim in self.victims:
            for data in self._forge(victim):
                shots += [Shot(self.keys.to_all(self.member), data), Shot(self.keys.to_all(victim), data)]
        return _cycle(shots)

    def _forge(self, sender: int) -> list[bytes]:
        """Make broadcast envelopes in another member's name, with forged MACs."""
        payload = encode_message(Message(self.chain, sender, 1, DecidedWanted()))
        all_macs = (self._false_macs(), bytes(MAC_SIZE * len(self.public_keys)))
        return [encode(Envelope(sender, None, self.dice.getrandbits(62), "", payload, macs)) for macs in all_macs]

    def _impersonated(self) -> Callable[[int], Shot]:
        makers = [self.impersonate(victim) for victim in self.victims]
        return lambda number: makers[number % len(makers)](number // len(makers))

    def impersonate(self, victim: int) -> Callable[[int], Shot]:
        """Return a function that makes the n-th payload in a victim's name: forged, genuine, garbage."""
        genuine = [data for data in self.heard if decode(data, Envelope, _MAX_ENVELOPE).sender == victim]
        return _cycle([
            Shot(self.keys.to_all(victim), data) for data in (*self._forge(victim), *genuine, self._noise(1, 2048))
        ])  # fmt: skip

    def _forged_mac(self) -> Callable[[int], Shot]:
        payload = self._message(1, DecidedWanted())

        def make(number: int) -> Shot:
            counter = MAX_INCARNATION << 32 | number
            data = encode(Envelope(self.member, None, counter, "", payload, self._false_macs()))
            return Shot(self.keys.to_all(self.member), data)

        return make

    def _wrong_chain(self) -> Callable[[int], Shot]:
        other = self._noise(DIGEST_SIZE)
        here, there = self.writer, self._new_writer(other, MAX_INCARNATION)
        payload = encode_message(Message(other, self.member, 1, DecidedWanted()))

        def make(number: int) -> Shot:
            writer = (here, there)[number % 2]
            return Shot(self.keys.to_all(self.member), writer.write(Purpose.MESSAGE, None, payload))

        return make

    def _wrong_round(self) -> Callable[[int], Shot]:
        writer, genuine = self.writer, self._genuine()

        def make(number: int) -> Shot:
            message = genuine[number % len(genuine)]
            height = max(1, message.height + (_FAR, -1, 1)[number % 3])
            payload = self._message(height, message.content)
            return Shot(self.keys.to_all(self.member), writer.write(Purpose.MESSAGE, None, payload))

        return make

    def _false_statements(self) -> Callable[[int], Shot]:
        """Make overheard statements for the current height, with every signature replaced by random bytes."""
        writer, said = self.writer, [one for one in self._genuine() if isinstance(one.content, Gossip)]

        def make(number: int) -> Shot:
            content = said[number % len(said)].content
            assert isinstance(content, Gossip)
            payload = self._message(self.find_height(), self._spoil(content))
            return Shot(self.keys.to_all(self.member), writer.write(Purpose.MESSAGE, None, payload))

        return make

    def _spoil(self, content: Gossip) -> Gossip:
        victim = self.dice.choice(self.victims)
        vote = Vote(Kind.PREVOTE, 1, self._noise(DIGEST_SIZE), victim, (), (), 0)
        return msgspec.structs.replace(
            content,
            wants_answer=False,
            updates=tuple(SignedUpdate(one.update, self._noise(SIGNATURE_SIZE)) for one in content.updates),
            reports=tuple(
                msgspec.structs.replace(one, signature=self._noise(SIGNATURE_SIZE)) for one in content.reports
            ),
            votes=(SignedVote(vote, self._noise(SIGNATURE_SIZE)),),
            changes=(),
        )

    def _begging(self) -> Callable[[int], Shot]:
        writer = self.writer

        def make(number: int) -> Shot:
            payload = self._message(1 + number % 5, DecidedWanted())
            return Shot(self.keys.to_all(self.member), writer.write(Purpose.MESSAGE, None, payload))

        return make

    def _no_such_blob(self) -> Callable[[int], Shot]:
        return self._requests(lambda number: PieceRequest(self._noise(DIGEST_SIZE), 0, 1000))

    def _bad_offset(self) -> Callable[[int], Shot]:
        models = [
            one.update.model
            for message in self._genuine()
            if isinstance(message.content, Gossip)
            for one in message.content.updates
            if one.update.model
        ] or [self._noise(DIGEST_SIZE)]
        offsets = (2**62, -1, -(2**62), 2**63 - 1)
        return self._requests(
            lambda number: NegativeRequest(models[number % len(models)], offsets[number % len(offsets)], 1000)
        )

    def _requests(self, make_request: Callable[[int], Record]) -> Callable[[int], Shot]:
        writer = self.writer

        def make(number: int) -> Shot:
            victim = self.victims[number % len(self.victims)]
            data = writer.write(Purpose.REQUEST, victim, encode(make_request(number)))
            return Shot(self._request_key(victim), data, is_query=True)

        return make

    def _garbage_requests(self) -> Callable[[int], Shot]:
        sizes = (1, 2 * (MAX_REQUEST_SIZE + overhead(1)))
        return _cycle([
            Shot(self._request_key(victim), self._noise(*sizes), is_query=True)
            for victim in self.victims
            for _ in range(_POOL // 8)
        ])  # fmt: skip

    def _request_key(self, victim: int) -> str:
        return self.keys.blob(victim, self.member)

    @cached_property
    def writer(self) -> EnvelopeWriter:
        """EnvelopeWriter that adds valid MACs to envelopes; each counter is used once."""
        return self._new_writer(self.chain, self.incarnation)

    def _new_writer(self, chain: bytes, incarnation: int) -> EnvelopeWriter:
        return EnvelopeWriter(Keyring(self.signer, chain), self.member, incarnation, self.public_keys)

    def _false_macs(self) -> bytes:
        return self._noise(MAC_SIZE * len(self.public_keys))

    def _message(self, height: int, content: object) -> bytes:
        return encode_message(Message(self.chain, self.member, height, content))  # type: ignore[arg-type]

    def _genuine(self) -> list[Message]:
        return [decode_message(decode(data, Envelope, _MAX_ENVELOPE).payload) for data in self.heard]

    def _own_key(self, number: int) -> str:
        """Return the key expression of a broadcast, or of one victim."""
        if number % 2:
            return self.keys.to_all(self.member)
        return self.keys.to_one(self.victims[number // 2 % len(self.victims)], self.member)

    def _noise(self, least: int, most: int | None = None) -> bytes:
        return self.dice.randbytes(least if most is None else self.dice.randint(least, most))


def _cycle(shots: Sequence[Shot]) -> Callable[[int], Shot]:
    return lambda number: shots[number % len(shots)]
