"""Bytes, records, names and signatures of a chain as FORMAT.md says: sections 1 to 5 and 10; nothing of bdfl."""

import struct
from hashlib import sha256
from itertools import pairwise

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id


class Wrong(Exception):
    """Something that FORMAT.md does not allow."""


def require(is_right, what):
    if not is_right:
        raise Wrong(what)


def sha(data):
    return sha256(data).digest()


def is_ascending(numbers):
    return all(former < latter for former, latter in pairwise(numbers))


# Section 1: values as bytes


def read_value(data, at=0):
    """A MessagePack value and where it ends; its form is not judged here."""
    require(at < len(data), "cut off")
    first = data[at]
    if first <= 0x7F or first >= 0xE0:
        return (first if first <= 0x7F else first - 256), at + 1
    if first in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[first], at + 1
    if 0xCC <= first <= 0xD3:
        size = (1, 2, 4, 8)[(first - 0xCC) % 4]
        return int.from_bytes(take(data, at + 1, size), "big", signed=first >= 0xD0), at + 1 + size
    kind, length, at = read_head(data, at)
    if kind == "array":
        require(length <= len(data) - at, "cut off")
        items = []
        for _ in range(length):
            item, at = read_value(data, at)
            items.append(item)
        return items, at
    content = take(data, at, length)
    return (content if kind == "bytes" else content.decode("utf-8", errors="strict")), at + length


def read_head(data, at):
    first = data[at]
    if 0x90 <= first <= 0x9F:
        return "array", first - 0x90, at + 1
    if 0xA0 <= first <= 0xBF:
        return "text", first - 0xA0, at + 1
    heads = {0xC4: ("bytes", 1), 0xC5: ("bytes", 2), 0xC6: ("bytes", 4), 0xD9: ("text", 1), 0xDA: ("text", 2)}
    heads |= {0xDB: ("text", 4), 0xDC: ("array", 2), 0xDD: ("array", 4)}
    require(first in heads, f"a value that begins with {first:02x}")
    kind, size = heads[first]
    return kind, int.from_bytes(take(data, at + 1, size), "big"), at + 1 + size


def take(data, at, size):
    require(at + size <= len(data), "cut off")
    return data[at : at + size]


def write(value):
    """The shortest encoding, the only valid one."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        if -32 <= value <= 127:
            return struct.pack(">b", value)
        forms = "BHIQ" if value >= 0 else "bhiq"
        marks = 0xCC if value >= 0 else 0xD0
        for place, form in enumerate(forms):
            bits = 8 * 2**place - (value < 0)
            if -(2**bits) <= value < 2**bits:
                return bytes([marks + place]) + struct.pack(f">{form}", value)
    if isinstance(value, list):
        return write_head(len(value), 0x90, 16, {2: 0xDC, 4: 0xDD}) + b"".join(map(write, value))
    if isinstance(value, str):
        text = value.encode()
        return write_head(len(text), 0xA0, 32, {1: 0xD9, 2: 0xDA, 4: 0xDB}) + text
    require(isinstance(value, bytes), "a type that is not allowed")
    return write_head(len(value), 0, 0, {1: 0xC4, 2: 0xC5, 4: 0xC6}) + value


def write_head(length, short, below, marks):
    if length < below:
        return bytes([short + length])
    size = next(size for size in marks if length < 256**size)
    return bytes([marks[size]]) + length.to_bytes(size, "big")


# Section 10: records. A type is a name of one, or: d digest, s signature, n nonce, w whole number, p positive, m a
# member, a attempt, e energy budget, u delta, T time, t text, b bytes, B boolean, o objective, D digest or none,
# x? x or nil, [x] array, quoted: one of these.

RECORDS = {
    "Genesis": "format:w name:t time_ms:T scenario:d members:[Member] physics:Physics scheduler:SchedulerName law:Law"
    " model:ModelForm schedule:Schedule access_points:[AccessPoint] privacy:Privacy?",
    "AccessPoint": "name:t certificate:d",
    "Privacy": "noise_micro:p clip_micro:p delta_atto:u accountant:'rdp|prv' batch:p steps:p unit:'updates|epochs'",
    "Member": "public_key:d limits:Limits conditions:Conditions",
    "Limits": "samples:w rate_nano:w cycles:w capacitance:p power_uw:w power_max_uw:w model_bits:p cpu_max_hz:w?"
    " mining_max_hz:w? initial_cpu_hz:p initial_mining_hz:p",
    "Physics": "min_clients:p tradeoff_nano:p work_cycles:p bandwidth_hz:p noise:p overhead_ns:w",
    "SchedulerName": "name:t version:t parameters:[Parameter] seed:w",
    "Parameter": "name:t value:t",
    "Law": "quorum:'majority|bft' work:'sha256|argon2id' difficulty:p target_ms:w aggregation:t faulty:w min_updates:p"
    " max_exchange_ns:p",
    "ModelForm": "initial:d size:p tensors:[Tensor]",
    "Tensor": "name:t shape:[w]",
    "Block": "header:Header nonce:n signature:s body:Body",
    "Header": "format:w chain:d height:p attempt:a parent:d proposer:m body:d difficulty:p time_ms:T",
    "Seal": "header:Header nonce:n",
    "Body": "parent_certificate:[SignedVote] schedule:Schedule is_empty:B model:d queue_nano:[w] modelled:Modelled"
    " reports:[SignedReport] next_schedule:Schedule entries:[Entry] updates:[SignedUpdate]",
    "Schedule": "round:p selected:[m] cpu_hz:[w] power_uw:[w] mining_hz:[w] objective_nano:o reason:t",
    "Modelled": "exchange_ns:w mining_ns:w delay_ns:w energy_pj:[w]",
    "Place": "chain:d height:w parent:d",
    "Conditions": "gain_atto:w energy_budget_pj:e is_reachable:B",
    "Receipt": "round:p energy_pj:w training_ns:w upload_ns:w mining_ns:w",
    "Report": "client:m round:p conditions:Conditions receipt:Receipt?",
    "SignedReport": "report:Report signature:s",
    "ModelUpdate": "client:m samples:w size:w model:D epsilon_micro:w",
    "SignedUpdate": "update:ModelUpdate signature:s",
    "Vote": "kind:'prevote|precommit' attempt:a block:d voter:m updates:[m] reports:[m] mining_ms:w",
    "SignedVote": "vote:Vote signature:s",
    "SignedHeader": "header:Header nonce:n signature:s",
    "TwoVotes": "kind:'two-votes' place:Place first:SignedVote second:SignedVote",
    "TwoBlocks": "kind:'two-blocks' first:SignedHeader second:SignedHeader",
    "TwoUpdates": "kind:'two-updates' place:Place first:SignedUpdate second:SignedUpdate",
    "FalseWork": "kind:'false-work' block:SignedHeader",
    "MembershipChange": "kind:'membership' change:Change expires:p assents:[Assent]",
    "Admission": "kind:'admission' number:m member:Member",
    "Removal": "kind:'removal' number:m",
    "Assent": "member:m signature:s",
    "MerkleProof": "index:w count:w siblings:[d]",
    "Message": "chain:d sender:m height:w content:Content",
    "Gossip": "kind:'hearsay' attempt:a wants_answer:B updates:[SignedUpdate] reports:[SignedReport]"
    " votes:[SignedVote] blocks:[d] changes:[MembershipChange] evidence:[Evidence]",
    "Proposal": "kind:'proposal' block:Block",
    "BlockWanted": "kind:'block-wanted' block:d",
    "DecidedWanted": "kind:'decided-wanted'",
    "Decided": "kind:'decided' block:Block certificate:[SignedVote]",
}
ONE_OF = {
    "Evidence": ("TwoVotes", "TwoBlocks", "TwoUpdates", "FalseWork"),
    "Entry": ("TwoVotes", "TwoBlocks", "TwoUpdates", "FalseWork", "MembershipChange"),
    "Change": ("Admission", "Removal"),
    "Content": ("Gossip", "Proposal", "BlockWanted", "DecidedWanted", "Decided"),
}
MOST = 2**63 - 1
NUMBERS = {
    "w": (0, MOST),
    "p": (1, MOST),
    "m": (0, 4095),
    "a": (1, 10_000),
    "e": (0, 10**18),
    "u": (1, 10**18 - 1),
    "o": (-MOST, MOST),
    "T": (1, 253402300799999),
}
LENGTHS = {"d": (32,), "s": (64,), "n": (8,), "D": (0, 32)}
COUNTS = {"tensors": 4096, "parameters": 64, "shape": 16, "votes": 32768, "blocks": 32768, "siblings": 2**32}
COUNTS |= {"changes": 16}


class Record:
    """Fields by name, in the order of the encoding."""

    def __init__(self, **fields):
        self.__dict__.update(fields)

    def __getitem__(self, name):
        return vars(self)[name]

    def __eq__(self, other):
        return vars(self) == vars(other)

    @property
    def bytes(self):
        return write(to_list(self))


def to_list(value):
    if isinstance(value, Record):
        return [to_list(item) for item in vars(value).values()]
    return [to_list(item) for item in value] if isinstance(value, list) else value


def decode(data, kind):
    """The record, or `[kind]` for an array of them, that these bytes are the only encoding of."""
    try:
        value, end = read_value(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise Wrong(str(error)) from None
    require(end == len(data), "bytes after the end")
    found = shape(value, kind, kind)
    require(write(to_list(found)) == data, "not the shortest encoding")
    return found


def shape(value, kind, name):
    if kind.endswith("?"):
        return None if value is None else shape(value, kind[:-1], name)
    if kind.startswith("["):
        require(isinstance(value, list) and len(value) <= COUNTS.get(name, 4096), f"{name}: no such array")
        return [shape(item, kind[1:-1], name) for item in value]
    if kind.startswith("'"):
        require(value in kind.strip("'").split("|"), f"{name}: {value!r}")
    elif kind in NUMBERS:
        low, high = NUMBERS[kind]
        require(type(value) is int and low <= value <= high, f"{name}: {value!r}")
    elif kind in LENGTHS:
        require(type(value) is bytes and len(value) in LENGTHS[kind], f"{name}: {value!r}")
    elif kind in "tbB":
        require(type(value) is {"t": str, "b": bytes, "B": bool}[kind], f"{name}: {value!r}")
        require(kind != "t" or len(value) <= 200, f"{name}: too long")
    else:
        return shape_record(value, kind, name)
    return value


def shape_record(value, kind, name):
    require(isinstance(value, list), f"{name}: no {kind}")
    if kind in ONE_OF:
        tags = {RECORDS[one].split("'")[1]: one for one in ONE_OF[kind]}
        require(value and value[0] in tags, f"{name}: no {kind}")
        kind = tags[value[0]]
    fields = [field.split(":") for field in RECORDS[kind].split()]
    require(len(fields) == len(value), f"{name}: {len(value)} fields, {kind} has {len(fields)}")
    return Record(**{field: shape(item, form, field) for (field, form), item in zip(fields, value, strict=True)})


# Sections 2 to 5: names, trees, signatures, work


def block_digest(header, nonce):
    return sha(write([to_list(header), nonce]))


def merkle_root(leaves):
    level = [sha(b"\x00" + leaf) for leaf in leaves]
    while len(level) > 1:
        pairs = [level[at : at + 2] for at in range(0, len(level), 2)]
        level = [sha(b"\x01" + pair[0] + pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
    return merkle_top(len(leaves), level[0])


def merkle_top(num_leaves, node):
    return sha(b"\x02" + struct.pack(">Q", num_leaves) + node)


def proven_root(leaf, proof):
    require(proof.index < proof.count, "proof: index")
    node, place, width, beside = sha(b"\x00" + leaf), proof.index, proof.count, list(proof.siblings)
    while width > 1:
        if place ^ 1 < width:
            require(beside, "proof: too short")
            other = beside.pop(0)
            node = sha(b"\x01" + (other + node if place % 2 else node + other))
        place, width = place // 2, (width + 1) // 2
    require(not beside, "proof: too long")
    return merkle_top(proof.count, node)


def body_root(body):
    rest = Record(**(vars(body) | {"updates": []}))
    return merkle_root([rest.bytes, *(update.bytes for update in body.updates)])


def statement(meaning, place, content):
    return sha(write(["bdfl/1", meaning, place, sha(content)]))


PRIME = 2**255 - 19
CURVE = -121665 * pow(121666, -1, PRIME) % PRIME
EIGHTH = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
SMALL = (0, 1, PRIME - 1, EIGHTH, PRIME - EIGHTH, PRIME, PRIME + 1)


def y_of(point):
    return int.from_bytes(point, "little") & (2**255 - 1)


def is_key(data):
    y = y_of(data)
    square = (y * y - 1) * pow(CURVE * y * y + 1, -1, PRIME)
    return y < PRIME and y not in SMALL and pow(square, (PRIME - 1) // 2, PRIME) == 1


def is_signed(public_key, signature, message):
    if y_of(public_key) in SMALL or y_of(signature[:32]) in SMALL:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def require_signed(public_key, signature, meaning, place, content, what):
    require(is_signed(public_key, signature, statement(meaning, place, content)), f"{what}: signature")


def work_hash(kind, seal, nonce):
    if kind == "sha256":
        return sha(seal + nonce)
    return Argon2id(salt=b"bdfl/1 proofwork", length=32, iterations=1, lanes=1, memory_cost=1024).derive(seal + nonce)


def is_worked(kind, header, nonce):
    return int.from_bytes(work_hash(kind, sha(header.bytes), nonce), "big") < 2**256 // header.difficulty
