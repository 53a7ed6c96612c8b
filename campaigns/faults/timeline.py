"""Timeline of a trial as text, at most 80 columns wide."""

from collections.abc import Iterable
from dataclasses import dataclass

from bdfl.ledger.block import SignedVote
from bdfl.ledger.member_set import find_change
from bdfl.ledger.store import Store
from bdfl.protocol.events import Commit, Effect, Refused, Send, TrainingFinished
from bdfl.protocol.messages import Gossip, Proposal
from bdfl.protocol.state import NodeState, Phase
from bdfl.transports.faults import Partition
from bdfl.transports.interfaces import Transition
from campaigns.faults.plan import FaultPlan, Offer
from campaigns.faults.recorder import Recorder

WIDTH = 80
_NETWORK = "-"


@dataclass(frozen=True)
class Line:
    """One event; `who` is a node's number, with a star if it lies."""

    now_ns: int
    who: str
    what: str


class Storyteller(Recorder):
    """A recorder that also keeps the timeline."""

    def __init__(self, plan: FaultPlan) -> None:
        super().__init__(plan.num_keys)
        self._liars = {member for member, _ in plan.liars}
        self._told: set[tuple[int, bytes]] = set()
        self.lines: list[Line] = [*_tell_plan(plan)]

    def tell(self, now_ns: int, node: int, what: str) -> None:
        self.lines.append(Line(now_ns, f"{node}*" if node in self._liars else str(node), what))

    def stepped(self, now_ns: int, number: int, done: Transition) -> None:
        super().stepped(now_ns, number, done)
        before, event, after = done.before, done.event, done.after
        height = after.chain.height + 1
        if before.chain.height != after.chain.height:
            return
        if isinstance(event, TrainingFinished):
            self.tell(now_ns, number, f"trained for {height}")
        if before.phase is Phase.COLLECTING and after.phase is not Phase.COLLECTING:
            held = _numbers(self.nodes[number].closings[height])
            self.tell(now_ns, number, f"closed collecting of {height}, holds updates of {held}")
        if after.attempt != before.attempt:
            self.tell(now_ns, number, f"attempt {height}.{after.attempt}")
        if after.lock != before.lock and after.lock is not None:
            self.tell(now_ns, number, f"locked on {_short(after.lock.block)} of {height}.{after.lock.attempt}")

    def did(self, now_ns: int, number: int, effect: Effect) -> None:
        super().did(now_ns, number, effect)
        match effect:
            case Refused(sender=sender, reason=reason):
                self.tell(now_ns, number, f"refused from {sender}: {reason}")
            case Commit(block=block, certificate=certificate, is_trusted=is_trusted):
                header = block.header
                voters = _numbers(signed.vote.voter for signed in certificate)
                what = f"COMMIT {header.height}: {_short(block.digest)} by {header.proposer}, attempt {header.attempt}"
                gave = _numbers(signed.update.client for signed in block.body.updates)
                change = "" if find_change(block.body.entries) is None else ", MEMBERS CHANGE"
                how = ", ON TRUST" if is_trusted else ""
                self.tell(now_ns, number, f"{what}, updates {gave}, votes {voters}{change}{how}")
            case Send(to=to, message=message) if isinstance(message.content, Proposal):
                block = message.content.block
                if (number, block.digest) not in self._told:
                    self._told.add((number, block.digest))
                    place = f"{block.header.height}.{block.header.attempt}"
                    gave = _numbers(signed.update.client for signed in block.body.updates)
                    receiver = "all" if to is None else str(to)
                    self.tell(now_ns, number, f"proposes {place}: {_short(block.digest)} to {receiver}, updates {gave}")
            case Send(to=to, message=message) if isinstance(message.content, Gossip):
                for signed in message.content.votes:
                    if signed.vote.voter == number and (number, signed.signature) not in self._told:
                        self._told.add((number, signed.signature))
                        self._tell_vote(now_ns, number, message.height, to, signed)

    def _tell_vote(self, now_ns: int, number: int, height: int, to: int | None, signed: SignedVote) -> None:
        receiver = "" if to is None else f" to {to}"
        vote = signed.vote
        self.tell(now_ns, number, f"{vote.kind} {height}.{vote.attempt}: {_short(vote.block)}{receiver}")

    def crashed(self, now_ns: int, number: int) -> None:
        super().crashed(now_ns, number)
        self.tell(now_ns, number, "CRASH")

    def restarted(self, now_ns: int, number: int, state: NodeState, store: Store) -> None:
        super().restarted(now_ns, number, state, store)
        self.tell(now_ns, number, f"back, chain of {store.height}, attempt {state.attempt}")

    def froze(self, now_ns: int, number: int) -> None:
        self.tell(now_ns, number, "frozen")

    def thawed(self, now_ns: int, number: int) -> None:
        self.tell(now_ns, number, "goes on")


def _tell_plan(plan: FaultPlan) -> Iterable[Line]:
    """Yield the planned events of the network as a whole."""
    for partition in plan.partitions:
        yield Line(partition.start_ns, _NETWORK, _describe_partition(partition))
        yield Line(partition.end_ns, _NETWORK, f"members {_numbers(partition.island)} are back")
    for offer in plan.offers:
        yield Line(offer.at_ns, _NETWORK, _describe_offer(plan, offer))
    yield Line(plan.quiet_ns, _NETWORK, "the faults stop")


def _describe_partition(partition: Partition) -> str:
    how = "are not heard" if partition.is_one_way else "are cut off"
    return f"PARTITION: members {_numbers(partition.island)} {how}"


def _describe_offer(plan: FaultPlan, offer: Offer) -> str:
    what = f"member {offer.member} {'leaves' if offer.member < plan.num_nodes else 'joins'}"
    agreed = "all agree" if offer.is_agreed else "too few agree"
    return f"OFFER to {_numbers(offer.nodes)}: {what}, up to height {offer.expires}, {agreed}"


def describe_plan(plan: FaultPlan) -> list[str]:
    """Summarise a plan in a few lines."""
    weather = plan.weather
    rule = plan.aggregation if not plan.faulty else f"{plan.aggregation} ({plan.faulty} faulty)"
    lines = [
        f"seed {plan.seed}: {plan.num_nodes} nodes, {plan.quorum} quorum, {plan.scheduler}, {rule}",
        f"messages: {weather.loss:.0%} lost, {weather.duplication:.0%} doubled, {weather.delay_ns / 1e9:g} s late on"
        " average",
        f"{len(plan.partitions)} partitions, {len(plan.crashes)} crashes, {len(plan.freezes)} freezes,"
        f" {len(plan.slow)} slow nodes; all well from {plan.quiet_ns / 1e9:.3f} s on",
    ]
    if plan.keep_blocks:
        lines.append(f"updates of the newest {plan.keep_blocks} blocks are kept, and one node is long away")
    if plan.offers:
        lines.append(f"{len(plan.offers)} changes of membership are offered")
    for member, lies in plan.liars:
        told = " and ".join(kind.value for kind in lies)
        lines.append(f"member {member} lies: {told}")
    if plan.hoarders:
        lines.append(f"who fills others' memory: {_numbers(plan.hoarders)}")
    if plan.liars:
        lines.append(f"whom liars tell another story: {_numbers(plan.camp)}")
    return lines


def render_timeline(lines: Iterable[Line]) -> list[str]:
    """Format the events in order of time; repeated events of a node are counted."""
    ordered = sorted(lines, key=lambda line: line.now_ns)
    rendered = [f"{'seconds':>9}  node  what"]
    last: dict[str, tuple[str, int]] = {}  # by node: text and index of its last line
    counts: dict[int, int] = {}
    for line in ordered:
        text, place = last.get(line.who, ("", -1))
        if text == line.what:
            counts[place] = counts.get(place, 1) + 1
            continue
        last[line.who] = line.what, len(rendered)
        rendered.append(f"{line.now_ns / 1e9:9.3f}  {line.who:>4}  {line.what}")
    for place, times in counts.items():
        rendered[place] += f" ({times} times)"
    return [piece for line in rendered for piece in _wrap(line)]


def _wrap(line: str) -> list[str]:
    """Wrap a line at 80 columns, with continuations indented to its text."""
    indent = " " * 19
    pieces = []
    while len(line) > WIDTH:
        cut = line.rfind(" ", len(indent) + 1, WIDTH + 1)
        cut = cut if cut > 0 else WIDTH
        pieces.append(line[:cut])
        line = indent + line[cut:].lstrip()
    return [*pieces, line]


def _numbers(members: Iterable[int]) -> str:
    return " ".join(map(str, sorted(members))) or "nobody"


def _short(name: bytes) -> str:
    return name.hex()[:6]
