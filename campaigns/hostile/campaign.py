"""Attack campaign on a network of real nodes: its effect on honest rounds, memory and the chain.

For each attack the network is measured three times: quiet, attacked, and under a CPU load equal to the attacker's. The
control separates an attack's harm from the processor time that the attacker takes on the same machine.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bdfl.encoding import digest
from bdfl.federation.genesis_file import load_live_scenario
from bdfl.federation.keys import load_key
from bdfl.identity import Signer
from bdfl.ledger.block import Certificate
from bdfl.ledger.member_set import find_evidence, offender_of
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.localnet.network import LocalNetwork, create_network, run_network
from bdfl.localnet.processes import node_folder, write_network
from bdfl.localnet.verdict import verify_network
from bdfl.node.access_point import KEY_FILE
from bdfl.node.run_file import read_run
from bdfl.node.settings import CHAIN_FOLDER, roots_of, write_tls
from bdfl.scenario import Scenario
from bdfl.scenario.files import find_scenario
from bdfl.transports.live.admission import message_limit
from bdfl.transports.live.certificates import issue_leaf, make_authority, member_name, write_tls as write_tls_files
from bdfl.transports.live.zenoh_config import chain_keys
from campaigns.hostile.attacks import ATTACKS, Attack, Who, find_attack
from campaigns.hostile.member import open_session
from campaigns.hostile.orders import Order, Said, folder_as
from campaigns.hostile.processes import attacking, burning
from campaigns.hostile.sampling import Phase, Stalled, Watch
from campaigns.hostile.stranger import StrangerProbe, probe_as_stranger

MAX_FALL = 0.2  # of honest rounds, against the control
MAX_GROWTH = 128 * 2**20  # bytes that attacks may add to a node's memory
_WARM_UP = 3  # blocks
_MAX_ROUNDS = 100_000
_CONTROL_S = 60.0  # upper limit; back-pressure can stretch an attack with 100,000 payloads to minutes
_QUICK = ("live.time_scale=0", "live.attempt_s=1", "live.resend_s=0.5")  # a fork costs little time
_STARTING_S = 300.0
_UNLISTED = "unlisted"
_ATTACK_LOG = "attacks.log"


class AttackResult(msgspec.Struct, frozen=True, kw_only=True):
    """One attack: the network quiet, attacked, and under the control load."""

    attack: str
    who: str
    quiet: Phase
    attacked: Phase
    control: Phase
    said: Said
    wanted_s: float  # processor time that the control should burn
    burned_s: float  # and did burn; less makes the loss look worse than it is

    @property
    def fall(self) -> float:
        """Fraction of honest rounds lost against the control."""
        return fall_of([self])

    @property
    def rejected_us(self) -> float:
        """Processor time (us) of all nodes per payload sent, beyond that of their rounds."""
        per_round_s = self.quiet.node_cpu_s / max(1, self.quiet.rounds)
        return 1e6 * (self.attacked.node_cpu_s - per_round_s * self.attacked.rounds) / max(1, self.said.sent)


class HostileResult(msgspec.Struct, frozen=True, kw_only=True):
    """Results of all attacks on a network."""

    num_nodes: int
    count: int
    rounds: int
    attacks: tuple[AttackResult, ...]
    height: int  # of the chain at the end
    traces: tuple[str, ...]  # statements of the hostile member in the chain
    accused: tuple[int, ...]  # honest members named in evidence
    failures: tuple[str, ...]  # invalid or different chains, and attacks that stalled the network
    stranger_transports: int
    stranger_heard: int

    @property
    def memory_growth(self) -> int:
        """Largest increase (bytes) of a node's memory over its level before the first attack."""
        if not self.attacks:
            return 0
        return max(one.attacked.memory_peak for one in self.attacks) - self.attacks[0].quiet.memory_after

    @property
    def faults(self) -> list[str]:
        """Violated expectations, as sentences."""
        found = [*self.failures, *self.traces]
        found += [f"honest member {member} is accused" for member in self.accused]
        for who in Who:
            some = [one for one in self.attacks if one.who == who]
            if some and fall_of(some) >= MAX_FALL:
                found.append(f"{who}: {100 * fall_of(some):.0f} % of honest rounds lost, {100 * MAX_FALL:.0f} allowed")
        if self.memory_growth > MAX_GROWTH:
            found.append(f"memory grew by {self.memory_growth >> 20} MiB, {MAX_GROWTH >> 20} allowed")
        received = sum(one.said.received_bytes for one in self.attacks if one.who == Who.STRANGER)
        if received or self.stranger_transports or self.stranger_heard:
            found.append(f"a stranger got {received} bytes, {self.stranger_transports} sessions; nothing expected")
        return found

    @property
    def is_good(self) -> bool:
        return not self.faults


def fall_of(results: Iterable[AttackResult]) -> float:
    """Return the fraction of honest rounds lost, relative to the rounds expected at the controls' rates.

    Each attack is weighted by its duration and compared with its own control.
    """
    some = [one for one in results if one.control.seconds]
    expected = sum(one.control.rounds / one.control.seconds * one.attacked.seconds for one in some)
    return 1 - sum(one.attacked.rounds for one in some) / expected if expected else 0.0


def hostile_scenario(num_nodes: int, changes: Sequence[str] = ()) -> Scenario:
    """Return a scenario on digits with so many honest members and a hostile one, at full speed and without end."""
    samples = min(180, 1440 // (num_nodes + 1))
    least = min(2, num_nodes)
    members = [f"clients.count={num_nodes + 1}", f"clients.samples={samples}", f"clients.min_selected={least}"]
    path = find_scenario("live")
    return load_live_scenario(path, [*members, *_QUICK, f"rounds={_MAX_ROUNDS}", *changes])


def select_attacks(who: Who | None, names: Sequence[str] = ()) -> list[Attack]:
    """Return the attacks of one kind of attacker, or with these names; all by default."""
    return [one for one in ATTACKS if (who is None or one.who is who) and (not names or one.name in names)]


def run_hostile_campaign(
    folder: Path,
    scenario: Scenario,
    attacks: Sequence[Attack],
    *,
    count: int,
    rounds: int,
    rate: float = 0.0,
    on_attack: Callable[[AttackResult], None] | None = None,
    on_verified: Callable[[int, int], None] | None = None,
) -> HostileResult:
    """Create a network whose last member is hostile, carry out the attacks, and judge the result.

    Each attack sends at least `count` payloads, at `rate` per second or as fast as accepted. Each phase lasts at least
    `rounds` rounds. An attack begins once no member is muted for an earlier one. `on_attack` gets each result,
    `on_verified` the number of verified chains and their total. An attack that stalls the network is the last, and a
    failure.
    """
    num_nodes = scenario.clients.count - 1
    network = create_network(folder, scenario, 0, None)
    write_network(folder, msgspec.structs.replace(network, num_nodes=num_nodes))  # the hostile member runs no node
    results: list[AttackResult] = []
    failures: list[str] = []
    probe = StrangerProbe(transports=0, heard=0)
    with run_network(folder, evaluates=False) as running:
        watch = Watch(running)
        enemy = _Enemy(running)
        with enemy.present():
            watch.wait_for_height(1)
        watch.wait_for_height(_WARM_UP)
        for attack in attacks:
            try:
                results.append(_try_attack(watch, enemy, enemy.order(attack, count, rate), rounds))
            except Stalled as error:
                failures.append(f"{attack.name}: {error}")
                break
            if on_attack is not None:
                on_attack(results[-1])
        else:
            probe = probe_as_stranger(enemy.unlisted, enemy.chain, num_nodes + 1, enemy.targets)
        running.stop()
    verdict = verify_network(folder, own_functions=frozenset(network.functions), on_progress=on_verified)
    failures += verdict.problems
    traces, accused = find_traces(node_folder(folder, 0) / CHAIN_FOLDER, num_nodes)
    return HostileResult(
        num_nodes=num_nodes,
        count=count,
        rounds=rounds,
        attacks=tuple(results),
        height=verdict.height,
        traces=traces,
        accused=accused,
        failures=tuple(failures),
        stranger_transports=probe.transports,
        stranger_heard=probe.heard,
    )


def _try_attack(watch: Watch, enemy: "_Enemy", order: Order, rounds: int) -> AttackResult:
    watch.wait_unmuted()
    quiet = watch.measure(rounds)
    with enemy.log.open("ab") as log:
        with attacking(order, log) as attacker:
            attacked = watch.measure(rounds, lambda: attacker.num_sent >= order.count, attacker.begin)
            said = attacker.end()
        lasts_s = min(said.seconds, _CONTROL_S)
        effort = attacker.effort.scaled(lasts_s / said.seconds)
        with burning(effort, log) as burner:
            control = watch.measure(rounds, lambda: burner.seconds >= lasts_s, burner.begin)
            wanted_s = effort.till(burner.seconds)
            burned_s = burner.end()
    return AttackResult(
        attack=order.attack,
        who=find_attack(order.attack).who.value,
        quiet=quiet,
        attacked=attacked,
        control=control,
        said=said,
        wanted_s=wanted_s,
        burned_s=burned_s,
    )


class _Enemy:
    """The hostile member of a network: its files and its targets."""

    def __init__(self, network: LocalNetwork) -> None:
        genesis, number = network.genesis, network.network.num_nodes
        self.chain, self.number = genesis.chain, number
        self._folder = node_folder(network.folder, number)
        self.log = network.folder / _ATTACK_LOG
        signer = load_key(self._folder / KEY_FILE)
        self.tls = write_tls(self._folder, genesis, signer, number)
        stranger = Signer(digest(b"nobody's " + genesis.chain))
        authority = make_authority(stranger, f"authority-{number}")
        key, certificate = issue_leaf(stranger, authority, member_name(number))
        self.unlisted = write_tls_files(self._folder / _UNLISTED, key, certificate, roots_of(genesis))
        self.targets = tuple(_find_address(network, node) for node in range(number))
        for victim in range(number):  # a member's CA can issue a certificate for any name
            key, certificate = issue_leaf(signer, genesis.authorities[number], member_name(victim))
            write_tls_files(folder_as(self._folder, victim), key, certificate, roots_of(genesis))
        self._public_keys = tuple(public_key.hex() for public_key in genesis.public_keys)
        self._incarnation = 0

    def order(self, attack: Attack, count: int, rate: float) -> Order:
        self._incarnation += 1
        return Order(
            attack=attack.name,
            count=count,
            rate=rate,
            targets=self.targets,
            chain=self.chain.hex(),
            member=self.number,
            public_keys=self._public_keys,
            folder=str(self._folder),
            incarnation=self._incarnation,
            max_message_size=message_limit(self.number + 1),
            seed=self._incarnation,
        )

    @contextmanager
    def present(self) -> Iterator[None]:
        """Announce the hostile member as present: at the start the other nodes wait for all founders."""
        with open_session(self.tls, self.chain, self.number + 1, self.targets) as session:
            token = session.liveliness().declare_token(
                chain_keys(self.chain).here(self.number, str(session.info.zid()))
            )
            yield
            token.undeclare()  # type: ignore[no-untyped-call]


def _find_address(network: LocalNetwork, number: int) -> str:
    """Return a node's listening address, once its run file has it."""
    deadline_s = time.monotonic() + _STARTING_S
    while time.monotonic() < deadline_s and network.nodes[number].is_up:
        run = read_run(node_folder(network.folder, number))
        if run is not None and run.listen:
            return run.listen[0]
        time.sleep(0.1)
    raise TimeoutError(f"node {number}: {network.nodes[number].last_words()}")


def find_traces(path: Path, hostile: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """List statements in a chain of a member that sent nothing valid, and other members accused by evidence."""
    traces: list[str] = []
    accused: set[int] = set()
    with ChainStore.open(path, read_only=True) as store:
        for height in range(1, store.height + 1):
            block = store.block(height)
            parts = {
                "proposer": [block.header.proposer],
                "update": [signed.update.client for signed in block.body.updates],
                "report": [signed.report.client for signed in block.body.reports],
                "vote": _voters(store.certificate(height)),
            }
            traces += [f"block {height}: {part} of member {hostile}" for part in parts if hostile in parts[part]]
            accused.update(map(offender_of, find_evidence(block.body.entries)))
    return tuple(traces), tuple(sorted(accused - {hostile}))


def _voters(certificate: Certificate) -> list[int]:
    return [signed.vote.voter for signed in certificate]
