"""Verifies a chain as FORMAT.md says, with the standard library and `cryptography` alone: nothing of bdfl is imported.

`python -m tests.vectors.independent_verifier chain.json`, or the folder of a chain, prints what it found, or the first
thing that is wrong.
"""

import json
import sqlite3
import sys
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from math import comb, prod
from pathlib import Path

from tests.vectors.independent_format import (
    MOST,
    Record,
    Wrong,
    block_digest,
    body_root,
    decode,
    is_ascending,
    is_key,
    is_worked,
    proven_root,
    require,
    require_signed,
    sha,
    to_list,
)
from tests.vectors.independent_models import (
    aggregate,
    fewest_updates,
    file_head,
    read_model,
    read_rule,
    read_state,
    take_step,
    write_model,
)

# Section 7: costs of a schedule


def count(value):
    return int(value.to_integral_value(ROUND_HALF_EVEN))


def cost_schedule(physics, members, schedule, candidates, queue_nano, most_ns=None):
    """(exchange_ns, mining_ns, delay_ns, energy_pj) and the objective; raises where a constraint is broken."""
    if schedule.reason:
        return [0, 0, 0, [0] * len(members)], 0
    active = {*schedule.selected, *(client for client, hz in enumerate(schedule.mining_hz) if hz)}
    require(active <= set(candidates), "schedule-C1")
    require(len(schedule.selected) >= physics.min_clients, "schedule-C2")
    require(any(schedule.mining_hz), "schedule-form: nobody mines")
    for member, hz in zip(members, schedule.mining_hz, strict=True):
        require(member.limits.mining_max_hz is None or hz <= member.limits.mining_max_hz, "schedule-cap")
    energy_j, exchange_s = [Decimal(0)] * len(members), Decimal(0)
    for client, cpu_hz, power_uw in zip(schedule.selected, schedule.cpu_hz, schedule.power_uw, strict=True):
        limits = members[client].limits
        require(limits.cpu_max_hz is None or cpu_hz <= limits.cpu_max_hz, "schedule-cap")
        require(power_uw <= max(limits.power_uw, limits.power_max_uw), "schedule-cap")
        require((cpu_hz or not limits.cycles) and power_uw and candidates[client].gain_atto, "schedule-form: endless")
        power_w = Decimal(power_uw) / 10**6
        gain = Decimal(candidates[client].gain_atto) / 10**18
        noise_w = physics.bandwidth_hz * (Decimal(physics.noise) / 10**30)
        rate = physics.bandwidth_hz * (1 + power_w * gain / noise_w).ln() / Decimal(2).ln()
        upload_s = limits.model_bits / rate
        training_s = Decimal(limits.cycles) / cpu_hz if limits.cycles else Decimal(0)
        exchange_s = max(exchange_s, training_s + upload_s)
        require(most_ns is None or (training_s + upload_s) * 10**9 <= most_ns, "schedule-exchange")
        training_j = Decimal("0.5") * (Decimal(limits.capacitance) / 10**36) * limits.cycles * cpu_hz**2
        energy_j[client] = energy_j[client] + (training_j + power_w * upload_s)
    mining_s = Decimal(physics.work_cycles) / sum(schedule.mining_hz)
    for client, hz in enumerate(schedule.mining_hz):
        if hz:
            capacitance = Decimal(members[client].limits.capacitance) / 10**36
            energy_j[client] = energy_j[client] + Decimal("0.5") * capacitance * mining_s * hz**3
    for client, spent_j in enumerate(energy_j):
        budget_j = Decimal(candidates[client].energy_budget_pj) / 10**12 if spent_j else 0
        require(not spent_j or spent_j <= budget_j * (1 + Decimal("0.000001")), "schedule-C3")
    delay_s = exchange_s + mining_s + Decimal(physics.overhead_ns) / 10**9
    times = [count(value * 10**9) for value in (exchange_s, mining_s, delay_s)]
    energy_pj = [count(value * 10**12) for value in energy_j]
    owed = sum(queue_nano[client] for client in schedule.selected)
    objective = count(physics.tradeoff_nano * delay_s - owed)
    require(max(times[2], *energy_pj, abs(objective)) <= MOST, "schedule-form: too large")
    return [*times, energy_pj], objective


def require_schedule(genesis, members, schedule, round, candidates, queue_nano):
    num, selected = len(members), schedule.selected
    require(schedule.round == round, "schedule-round")
    require(is_ascending(selected) and all(client < num for client in selected), "schedule-form")
    require(len(schedule.cpu_hz) == len(schedule.power_uw) == len(selected), "schedule-form")
    require(len(schedule.mining_hz) == num, "schedule-form")
    require(not schedule.reason or not (selected or any(schedule.mining_hz)), "schedule-form")
    with localcontext(Context(prec=40, rounding=ROUND_HALF_EVEN, Emin=-999999, Emax=999999)):
        _, objective = cost_schedule(
            genesis.physics, members, schedule, candidates, queue_nano, genesis.law.max_exchange_ns
        )
    require(schedule.objective_nano == objective, "schedule-objective")


# Sections 8 and 9: the state and the rules


class Roll:
    """All who ever were members, by number, and who is one at some height."""

    def __init__(self, members, active):
        self.members, self.active = members, active

    def quorum(self, rule):
        num = len(self.active)
        return num // 2 + 1 if rule == "majority" else 2 * num // 3 + 1

    def after(self, change, genesis):
        """The roll with a change made; raises where that is not allowed."""
        if change.kind == "admission":
            require(change.number == len(self.members) < 4096, "change-number")
            roll = Roll([*self.members, change.member], self.active | {change.number})
            require_members(roll.members)
        else:
            require(change.number in self.active, "change-number")
            roll = Roll(self.members, self.active - {change.number})
            require(len(roll.active) >= max(genesis.physics.min_clients, genesis.law.min_updates), "change-too-few")
        require_crowd(genesis.law, len(roll.active))
        return roll


def require_members(members):
    keys = {member.public_key for member in members}
    require(1 <= len(members) == len(keys) and all(map(is_key, keys)), "public-keys")
    require(all(member.limits.samples < 2**29 for member in members), "samples")
    require(all(member.limits.rate_nano <= 10**9 for member in members), "rates")


def require_crowd(law, num):
    require(read_rule(law.aggregation)[0] != "minimum-diameter" or comb(num, law.faulty) <= 200_000, "aggregation")


class Chain:
    """A chain as far as it is verified."""

    def __init__(self, genesis, initial_model):
        self.genesis, self.id = genesis, sha(genesis.bytes)
        law, form, num = genesis.law, genesis.model, len(genesis.members)
        # Of the tip's height, the next one, and the one after that.
        self.before = self.now = self.coming = Roll(genesis.members, set(range(num)))
        self.height, self.tip, self.tip_parent, self.model = 0, self.id, bytes(32), form.initial
        self.schedule = genesis.schedule
        self.conditions = {client: member.conditions for client, member in enumerate(genesis.members)}
        self.queue_nano, self.misses, self.rests_until, self.epsilon_micro = ([0] * num for _ in range(4))
        self.offenders, self.difficulty = set(), law.difficulty
        self.times_ms = [genesis.time_ms]
        require(genesis.format == 3, "format")
        require_members(genesis.members)
        names = {tensor.name for tensor in form.tensors}
        require(len(names) == len(form.tensors) and "__metadata__" not in names, "model-tensors")
        require(all(all(tensor.shape) for tensor in form.tensors), "model-tensors")
        size = len(file_head(form.tensors)) + 4 * sum(prod(tensor.shape) for tensor in form.tensors)
        require(form.size == size <= 2**31, "model-size")
        self.rule, self.server = read_rule(law.aggregation)
        fewest = fewest_updates(self.rule, law.faulty)
        require(fewest is not None and (self.rule != "mean" or law.faulty == 0), "aggregation")
        require(law.min_updates >= fewest, "min-updates")
        require_crowd(law, num)
        require(genesis.physics.min_clients <= num, "physics")
        require(is_ascending([parameter.name for parameter in genesis.scheduler.parameters]), "scheduler")
        self.require_schedule(genesis.schedule, 1)
        require(len(initial_model) == size and sha(initial_model) == form.initial, "initial-model")
        read_model(initial_model, form.tensors)

    def require_schedule(self, schedule, round):
        """For the members that have a place in the queues."""
        require_schedule(self.genesis, self.coming.members, schedule, round, self.candidates(round), self.queue_nano)

    def candidates(self, round):
        reachable = {client: found for client, found in self.conditions.items() if found.is_reachable}
        rested = {client: found for client, found in reachable.items() if self.rests_until[client] < round}
        return rested if len(rested) >= self.genesis.physics.min_clients else reachable

    def add(self, block, certificate, blobs, proofs=None, is_checkpoint=False):
        """Moves on by a valid block; raises `Wrong` for any other. `proofs` are those of a pruned block by client."""
        header, body, height = block.header, block.body, self.height + 1
        place = [self.id, height, self.tip]
        require(header.format == 3, "format")
        require([header.chain, header.height, header.parent] == place, "link")
        least_ms = min(sorted(self.times_ms)[(len(self.times_ms) - 1) // 2] + 1, 253_402_300_799_999)
        require(least_ms <= header.time_ms <= 253_402_300_799_999, "time")
        require(header.proposer in self.now.active, "proposer")
        seal = Record(header=header, nonce=block.nonce)
        require_signed(self.key(header.proposer), block.signature, "block", place, seal.bytes, "block")
        require(body_root(body) == header.body, "body-root")
        difficulty = self.retarget(body.parent_certificate)
        require(header.difficulty == max(1, difficulty >> (header.attempt - 1)), "difficulty")
        require(is_worked(self.genesis.law.work, header, block.nonce), "work")
        if height == 1:
            require(not body.parent_certificate, "certificate-genesis")
        else:
            parent_place = [self.id, self.height, self.tip_parent]
            self.require_certificate(body.parent_certificate, self.tip, parent_place, self.before)
        name = block_digest(header, block.nonce)
        self.require_certificate(certificate, name, place, self.now)
        require(body.schedule == self.schedule, "played-schedule")
        self.require_updates(body, place)
        self.require_emptiness(body)
        if proofs is None:
            self.require_model(body, blobs)
        else:
            self.require_proofs(block, proofs)
            require(not is_checkpoint or is_blob(blobs, body.model), "blob-stored")
        self.require_reports(body, place, height)
        convicted, later = self.require_entries(body.entries)
        with localcontext(Context(prec=40, rounding=ROUND_HALF_EVEN, Emin=-999999, Emax=999999)):
            costs, _ = cost_schedule(
                self.genesis.physics, self.now.members, self.schedule, self.candidates(height), self.queue_nano
            )
        require(to_list(body.modelled) == costs, "modelled-receipts")
        self.settle(body, height, convicted)
        require(body.queue_nano == self.queue_nano, "queues")
        self.require_schedule(body.next_schedule, height + 1)
        self.before, self.now, self.coming = self.now, self.coming, later
        self.height, self.tip_parent, self.tip = height, self.tip, name
        self.times_ms = [*self.times_ms, header.time_ms][-11:]
        self.model, self.schedule, self.difficulty = body.model, body.next_schedule, difficulty

    def retarget(self, certificate):
        target_ms = self.genesis.law.target_ms
        if not target_ms or not certificate:
            return self.difficulty
        waits = sorted(signed.vote.mining_ms or target_ms for signed in certificate)
        wanted = self.difficulty * target_ms // waits[(len(waits) - 1) // 2]
        return min(max(wanted, (self.difficulty + 1) // 2), 2 * self.difficulty, MOST)

    def key(self, number):
        return self.now.members[number].public_key

    def require_certificate(self, certificate, block, place, roll):
        votes = [signed.vote for signed in certificate]
        require(len(votes) >= roll.quorum(self.genesis.law.quorum), "certificate-quorum")
        require(is_ascending([vote.voter for vote in votes]), "certificate-order")
        require({(vote.kind, vote.block) for vote in votes} == {("precommit", block)}, "certificate-block")
        require(len({vote.attempt for vote in votes}) == 1, "certificate-attempt")
        for signed in certificate:
            vote = signed.vote
            require(vote.voter in roll.active, "vote-member")
            for held in (vote.updates, vote.reports):
                require(is_ascending(held) and roll.active.issuperset(held), "vote-holdings")
            key = roll.members[vote.voter].public_key
            require_signed(key, signed.signature, "vote", place, vote.bytes, "vote")

    def require_updates(self, body, place):
        require(is_ascending([signed.update.client for signed in body.updates]), "update-order")
        for signed in body.updates:
            update = signed.update
            require(update.client in self.schedule.selected, "update-scheduled")
            require(update.client not in self.offenders, "update-offender")
            require(update.samples == self.now.members[update.client].limits.samples, "update-samples")
            require(update.size == (self.genesis.model.size if update.model else 0), "update-size")
            require(not update.model or update.samples or update.model == self.model, "update-without-data")
            spent, last = update.epsilon_micro, self.epsilon_micro[update.client]
            if self.genesis.privacy is None or update.samples == 0:
                require(spent == 0, "update-epsilon")
            else:
                require(spent >= max(last, 1 if update.model else 0), "update-epsilon")
            require_signed(self.key(update.client), signed.signature, "update", place, update.bytes, "update")

    def require_emptiness(self, body):
        require(body.is_empty == (len(aggregated(body)) < self.genesis.law.min_updates), "empty")
        require(not body.is_empty or body.model == self.model, "empty-model")

    def require_proofs(self, block, proofs):
        for signed in block.body.updates:
            proof = proofs.get(signed.update.client)
            require(proof is not None, "merkle-proof")
            require(proven_root(signed.bytes, decode(proof, "MerkleProof")) == block.header.body, "merkle-proof")

    def require_model(self, body, blobs):
        law, form = self.genesis.law, self.genesis.model
        if body.is_empty:
            return
        vectors = []
        updates = aggregated(body)
        for update in updates:
            data = blobs.get(update.model)
            require(data is not None and sha(data) == update.model and len(data) == form.size, "blob-digest")
            vectors.append(read_model(data, form.tensors))
        numbers = aggregate(self.rule, law.faulty, vectors, [update.samples for update in updates])
        made = write_model(numbers, form.tensors)
        if self.server is not None:
            require(is_blob(blobs, self.model), "blob-stored")
            state = read_state(self.server, blobs.get(self.model), form.tensors)
            state = take_step(self.server, state, read_model(made, form.tensors))
            made = b"".join(write_model(row, form.tensors) for row in state)
        require(sha(made) == body.model, "model-aggregate")
        require(is_blob(blobs, body.model), "model-stored")

    def require_reports(self, body, place, height):
        require(is_ascending([signed.report.client for signed in body.reports]), "report-order")
        for signed in body.reports:
            report = signed.report
            require(report.client in self.now.active, "report-member")
            require(report.round == height + 1, "report-round")
            require(report.receipt is None or report.receipt.round == height - 1, "receipt-round")
            require_signed(self.key(report.client), signed.signature, "report", place, report.bytes, "report")

    def require_entries(self, entries):
        """Who is convicted, and the roll from two heights on."""
        changes = [entry for entry in entries if entry.kind == "membership"]
        require(len(changes) <= 1 and all(change is entries[-1] for change in changes), "change-place")
        offenders = [self.convict(entry) for entry in entries if entry.kind != "membership"]
        require(is_ascending(offenders) and not self.offenders & set(offenders), "evidence-known")
        for found in changes:
            self.require_assents(found)
            return set(offenders), self.coming.after(found.change, self.genesis)
        return set(offenders), self.coming

    def require_assents(self, found):
        require(found.expires > self.height, "change-expired")
        numbers = [assent.member for assent in found.assents]
        require(is_ascending(numbers) and all(number < len(self.now.members) for number in numbers), "change-assents")
        counted = self.now.active.intersection(numbers) - self.offenders
        require(len(counted) >= self.now.quorum(self.genesis.law.quorum), "change-quorum")
        place = [self.id, found.expires, bytes(32)]
        for assent in found.assents:
            require_signed(self.key(assent.member), assent.signature, "membership", place, found.change.bytes, "change")

    def convict(self, entry):
        """The offender that an entry proves; raises if it proves nothing."""
        if entry.kind in ("two-votes", "two-updates"):
            meaning, who = ("vote", "voter") if entry.kind == "two-votes" else ("update", "client")
            first, second = entry.first[meaning], entry.second[meaning]
            same, differs = ((who, "kind", "attempt"), "block") if meaning == "vote" else ((who,), None)
            require(all(first[name] == second[name] for name in same), "evidence")
            require(first != second if differs is None else first[differs] != second[differs], "evidence")
            offender, place = first[who], to_list(entry.place)
            require(offender < len(self.now.members) and place[0] == self.id, "evidence")
            for signed in (entry.first, entry.second):
                content = signed[meaning].bytes
                require_signed(self.key(offender), signed.signature, meaning, place, content, "evidence")
            return offender
        blocks = [entry.block] if entry.kind == "false-work" else [entry.first, entry.second]
        headers = [block.header for block in blocks]
        require(len({(header.proposer, header.height, header.attempt) for header in headers}) == 1, "evidence")
        require(headers[0].proposer < len(self.now.members), "evidence")
        for block in blocks:
            header, seal = block.header, Record(header=block.header, nonce=block.nonce)
            require(header.chain == self.id, "evidence-chain")
            place = [header.chain, header.height, header.parent]
            require_signed(self.key(header.proposer), block.signature, "block", place, seal.bytes, "evidence")
        if entry.kind == "false-work":
            require(not is_worked(self.genesis.law.work, headers[0], entry.block.nonce), "evidence-work")
        else:
            names = {block_digest(block.header, block.nonce) for block in blocks}
            require(len(names) == 2, "evidence-blocks")
        return headers[0].proposer

    def settle(self, body, height, convicted):
        heard = {signed.update.client for signed in body.updates}
        took_part = {signed.update.client for signed in body.updates if signed.update.model}
        queues = []
        for client, before in enumerate(self.queue_nano):
            after = max(before + self.now.members[client].limits.rate_nano - 10**9 * (client in took_part), 0)
            is_counted = client in self.conditions and self.rests_until[client] < height
            queues.append(after if is_counted else before)
        self.queue_nano = queues
        for signed in body.updates:
            self.epsilon_micro[signed.update.client] = signed.update.epsilon_micro
        for client in self.schedule.selected:
            self.misses[client] = 0 if client in heard else self.misses[client] + 1
            if client not in heard:
                self.rests_until[client] = height + min(2 ** self.misses[client] - 1, 63)
        self.offenders |= convicted
        reports = [signed.report for signed in body.reports]
        staying = self.coming.active - self.offenders
        self.conditions = {one.client: one.conditions for one in reports if one.client in staying}
        for places in (self.queue_nano, self.misses, self.rests_until, self.epsilon_micro):
            places += [0] * (len(self.coming.members) - len(places))


def aggregated(body):
    updates = [signed.update for signed in body.updates]
    return [update for update in updates if update.model and update.samples]


def is_blob(blobs, name):
    data = blobs.get(name)
    return data is not None and sha(data) == name


# Section 13: the folder


class Files:
    """Files by their digest."""

    def __init__(self, folder):
        self.folder = folder

    def get(self, name):
        path = self.folder / name.hex()[:2] / name.hex()
        return path.read_bytes() if path.is_file() else None


def verify_folder(folder):
    """The chain in a folder at its tip; `Wrong` says in `block` where it is wrong."""
    database = sqlite3.connect(f"{(folder / 'chain.sqlite').absolute().as_uri()}?mode=ro", uri=True)
    height = 0
    try:
        files = Files(folder / "blobs")
        [(data, checksum)] = database.execute("SELECT data, checksum FROM genesis")
        require(sha(data) == checksum, "store")
        genesis = decode(data, "Genesis")
        initial = files.get(genesis.model.initial)
        require(initial is not None, "blob-stored")
        chain = Chain(genesis, initial)
        [(checkpoint,)] = database.execute("SELECT height FROM checkpoint")
        for stored, *row in database.execute("SELECT height, data, certificate, checksum FROM blocks ORDER BY height"):
            height += 1
            require(stored == height and sha(row[0] + row[1]) == row[2], "store")
            require(row[1][:1] == b"\x91", "encoding")
            proofs = database.execute("SELECT client, data FROM proofs WHERE height = ?", [height])
            certificate = decode(row[1][1:], "[SignedVote]")
            proofs = dict(proofs.fetchall()) if height <= checkpoint else None
            chain.add(decode(row[0], "Block"), certificate, files, proofs, height == checkpoint)
        return chain
    except Wrong as error:
        error.block = height
        raise
    finally:
        database.close()


def verify(given):
    """The chain at its tip; `given` is what chain.json holds."""
    genesis = decode(bytes.fromhex(given["genesis"]), "Genesis")
    initial = given["blobs"].get(genesis.model.initial.hex())
    require(initial is not None, "initial-model")
    chain = Chain(genesis, bytes.fromhex(initial))
    for place in range(len(given["blocks"])):
        add_block(chain, given, place)
    return chain


def add_block(chain, given, place):
    """Moves the chain on by the block at a place of chain.json."""
    blobs = {bytes.fromhex(name): bytes.fromhex(data) for name, data in given["blobs"].items()}
    block = decode(bytes.fromhex(given["blocks"][place]), "Block")
    chain.add(block, decode(bytes.fromhex(given["certificates"][place]), "[SignedVote]"), blobs)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    try:
        found = verify_folder(place) if place.is_dir() else verify(json.loads(place.read_text(encoding="utf-8")))
    except Wrong as error:
        sys.exit(f"wrong: {error}")
    print(f"valid: {found.height} blocks of chain {found.id.hex()}, tip {found.tip.hex()}")
