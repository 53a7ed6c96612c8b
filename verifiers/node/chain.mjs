/** The state of a chain, and when a block is valid on it: FORMAT.md, sections 8 and 9. */
import { Wrong, decode, isAscending, require } from "./encoding.mjs";
import { aggregate, fewestUpdates, fileForm, isBearable, readModel, readRule, readState, takeStep, writeModel } from "./models.mjs";
import { blockDigest, bodyRoot, isPublicKey, isWorked, provenRoot, requireSigned, sealOf, sha256 } from "./names.mjs";
import { costSchedule, requireSchedule } from "./schedules.mjs";

const FORMAT = 3n;
const NANO = 10n ** 9n;
const MOST = 2n ** 63n - 1n;
const MOST_SIZE = 2n ** 31n;
const LAST_TIME = 253_402_300_799_999;
const NUM_TIMES = 11;
const ZERO_DIGEST = Buffer.alloc(32);

function larger(one, other) {
  return one > other ? one : other;
}

function smaller(one, other) {
  return one < other ? one : other;
}

/** All who ever were members, by number, and who is one at a height. */
class Roll {
  constructor(members, active) {
    this.members = members;
    this.active = active;
  }

  quorum(rule) {
    const num = this.active.size;
    return rule === "majority" ? Math.floor(num / 2) + 1 : Math.floor((2 * num) / 3) + 1;
  }

  after(change, { physics, law }) {
    const isAdmission = change.kind === "admission";
    const active = new Set(this.active);
    if (isAdmission) {
      require(change.number === this.members.length && change.number < 4096, "change-number");
      active.add(change.number);
    } else {
      require(active.delete(change.number), "change-number");
      require(BigInt(active.size) >= larger(physics.min_clients, law.min_updates), "change-too-few");
    }
    const members = isAdmission ? [...this.members, change.member] : this.members;
    requireMembers(members, "change-");
    require(isBearable(readRule(law.aggregation).rule, law.faulty, active.size), "change-aggregation");
    return new Roll(members, active);
  }
}

function requireMembers(members, prefix = "") {
  require(members.length >= 1, `${prefix}members`);
  const keys = new Set(members.map((member) => member.public_key.toString("latin1")));
  require(keys.size === members.length, `${prefix}public-keys`, "two are the same");
  members.forEach(({ public_key, limits }, number) => {
    require(isPublicKey(public_key), `${prefix}public-keys`, `member ${number}`);
    require(limits.samples < 2n ** 29n, `${prefix}samples`);
    require(limits.rate_nano <= NANO, `${prefix}rates`);
  });
}

/** A chain as far as it is verified. `readFile` gives the bytes of a digest, null where there are none. */
export class Chain {
  constructor(genesisBytes, readFile) {
    const genesis = decode(genesisBytes, "Genesis");
    const { law, model, members, physics, scheduler } = genesis;
    this.readFile = readFile;
    this.genesis = genesis;
    this.id = sha256(genesisBytes);
    require(genesis.format === FORMAT, "format");
    requireMembers(members);
    this.form = readForm(model);
    const { rule, server } = readRule(law.aggregation);
    [this.rule, this.server] = [rule, server];
    const fewest = fewestUpdates(rule, law.faulty);
    require(fewest !== null, "aggregation", law.aggregation);
    require(isBearable(rule, law.faulty, members.length), "aggregation");
    require(law.min_updates >= fewest, "min-updates");
    require(physics.min_clients <= BigInt(members.length), "physics");
    const names = scheduler.parameters.map(({ name }) => Buffer.from(name).toString("latin1"));
    require(isAscending(names), "scheduler");

    const roll = new Roll(members, new Set(members.keys()));
    [this.before, this.now, this.coming] = [roll, roll, roll]; // of the tip's height, the next one, and the one after
    [this.height, this.tip, this.tipParent] = [0, this.id, ZERO_DIGEST];
    [this.model, this.schedule, this.difficulty] = [model.initial, genesis.schedule, law.difficulty];
    this.conditions = new Map(members.map((member, client) => [client, member.conditions]));
    this.queue = members.map(() => 0n);
    this.misses = members.map(() => 0);
    this.rests = members.map(() => 0);
    this.epsilon = members.map(() => 0n);
    this.offenders = new Set();
    this.times = [genesis.time_ms];
    this.numSignatures = 0;
    try {
      requireSchedule(genesis, members, genesis.schedule, 1n, this.candidates(1), this.queue);
    } catch (error) {
      throw error instanceof Wrong ? new Wrong(`first-${error.rule}`) : error;
    }
    this.requireFile(model.initial, "initial-model");
  }

  /** The largest file of a chain: a global model with its moments. */
  get largestFile() {
    return this.form.size * (this.server === null ? 1n : this.server.numFiles);
  }

  /** The bytes of a digest. */
  requireBytes(digest, rule) {
    const data = this.readFile(digest);
    require(data !== null, "blob-stored", digest.toString("hex"));
    require(sha256(data).equals(digest), rule, digest.toString("hex"));
    return data;
  }

  /** The numbers in the file of a digest. */
  requireFile(digest, rule) {
    return readModel(this.requireBytes(digest, rule), this.form);
  }

  candidates(round) {
    const reachable = [...this.conditions].filter(([, found]) => found.is_reachable);
    const rested = reachable.filter(([client]) => this.rests[client] < round);
    return new Map(BigInt(rested.length) >= this.genesis.physics.min_clients ? rested : reachable);
  }

  signed(roll, number, signature, meaning, place, content, rule) {
    this.numSignatures += 1;
    requireSigned(roll.members[number].public_key, signature, meaning, place, content, rule);
  }

  /**
   * Moves on by a block; raises `Wrong` for one that is not valid. `proofOf(client)` gives the bytes of the proof that a
   * pruned block's update has; without it the model is aggregated anew.
   */
  add(blockBytes, certificateBytes, proofOf = null, isCheckpoint = false) {
    const block = decode(blockBytes, "Block");
    const certificate = decode(certificateBytes, "StoredVotes").votes;
    const { header, body } = block;
    const height = this.height + 1;
    const place = [this.id, height, this.tip];
    this.requireHeader(block, height, place);
    if (height === 1) require(body.parent_certificate.length === 0, "certificate-genesis");
    else this.requireCertificate(body.parent_certificate, this.tip, [this.id, this.height, this.tipParent], this.before);
    const name = blockDigest(block);
    this.requireCertificate(certificate, name, place, this.now);
    require(body.schedule.bytes.equals(this.schedule.bytes), "played-schedule");
    this.requireUpdates(body, place);
    this.requireModel(body, header, proofOf, isCheckpoint);
    this.requireReports(body, place, height);
    const convicted = this.requireEntries(body.entries);
    const later = this.requireChange(body.entries, height);
    this.requireReceipts(body, height);
    const difficulty = this.retarget(body.parent_certificate);
    this.settle(body, height, convicted);
    const queues = body.queue_nano;
    require(
      queues.length === this.queue.length && queues.every((queue, client) => queue === this.queue[client]),
      "queues",
    );
    const round = height + 1;
    const candidates = this.candidates(round);
    requireSchedule(this.genesis, this.coming.members, body.next_schedule, BigInt(round), candidates, this.queue);
    [this.before, this.now, this.coming] = [this.now, this.coming, later];
    [this.height, this.tipParent, this.tip] = [height, this.tip, name];
    [this.model, this.schedule, this.difficulty] = [body.model, body.next_schedule, difficulty];
    this.times = [...this.times, header.time_ms].slice(-NUM_TIMES);
  }

  requireHeader(block, height, place) {
    const { header, body } = block;
    require(header.format === FORMAT, "format");
    require(header.chain.equals(this.id), "chain");
    require(header.height === BigInt(height), "height");
    require(header.parent.equals(this.tip), "parent");
    const median = [...this.times].sort((one, other) => one - other)[(this.times.length - 1) >> 1];
    require(header.time_ms >= Math.min(median + 1, LAST_TIME), "time");
    require(this.now.active.has(header.proposer), "proposer");
    this.signed(this.now, header.proposer, block.signature, "block", place, sealOf(block), "block-signature");
    require(bodyRoot(body).equals(header.body), "body-root");
    const halved = this.retarget(body.parent_certificate) >> BigInt(header.attempt - 1);
    require(header.difficulty === larger(halved, 1n), "difficulty");
    require(isWorked(this.genesis.law.work, block), "work");
  }

  retarget(certificate) {
    const target = this.genesis.law.target_ms;
    if (target === 0n || certificate.length === 0) return this.difficulty;
    const waits = certificate.map(({ vote }) => vote.mining_ms || target).sort((one, other) => (one < other ? -1 : 1));
    const wanted = (this.difficulty * target) / waits[(waits.length - 1) >> 1];
    const least = (this.difficulty + 1n) / 2n;
    return smaller(smaller(larger(wanted, least), 2n * this.difficulty), MOST);
  }

  requireCertificate(certificate, digest, place, roll) {
    const votes = certificate.map(({ vote }) => vote);
    require(votes.length >= roll.quorum(this.genesis.law.quorum), "certificate-quorum");
    require(isAscending(votes.map(({ voter }) => voter)), "certificate-order");
    for (const { vote, signature } of certificate) {
      require(vote.kind === "precommit", "certificate-kind");
      require(vote.block.equals(digest), "certificate-block");
      require(vote.attempt === votes[0].attempt, "certificate-attempt");
      require(roll.active.has(vote.voter), "vote-member");
      for (const held of [vote.updates, vote.reports])
        require(isAscending(held) && held.every((number) => roll.active.has(number)), "vote-holdings");
      this.signed(roll, vote.voter, signature, "vote", place, vote.bytes, "vote-signature");
    }
  }

  requireUpdates({ updates }, place) {
    require(isAscending(updates.map(({ update }) => update.client)), "update-order");
    for (const { update, signature } of updates) {
      const { client, samples, size, model } = update;
      require(this.now.active.has(client), "update-member");
      require(this.schedule.selected.includes(client), "update-scheduled");
      require(!this.offenders.has(client), "update-offender");
      require(samples === this.now.members[client].limits.samples, "update-samples");
      const isDeclined = model.length === 0;
      require(size === (isDeclined ? 0n : this.genesis.model.size), "update-size");
      require(isDeclined || samples > 0n || model.equals(this.model), "update-without-data");
      const spent = update.epsilon_micro;
      if (this.genesis.privacy === null || samples === 0n) require(spent === 0n, "update-epsilon");
      else require(spent >= larger(this.epsilon[client], isDeclined ? 0n : 1n), "update-epsilon");
      this.signed(this.now, client, signature, "update", place, update.bytes, "update-signature");
    }
  }

  requireModel(body, header, proofOf, isCheckpoint) {
    const { law } = this.genesis;
    const aggregated = body.updates
      .map(({ update }) => update)
      .filter(({ model, samples }) => model.length > 0 && samples > 0n);
    require(body.is_empty === BigInt(aggregated.length) < law.min_updates, "empty");
    if (body.is_empty) require(body.model.equals(this.model), "empty-model");
    if (proofOf !== null) {
      for (const signed of body.updates) {
        const proof = proofOf(signed.update.client);
        require(proof !== null, "merkle-proof");
        const root = provenRoot(signed.bytes, decode(proof, "MerkleProof"));
        require(root !== null && root.equals(header.body), "merkle-proof");
      }
      if (isCheckpoint) this.requireBytes(body.model, "blob-digest");
    } else if (!body.is_empty) {
      const vectors = aggregated.map(({ model }) => this.requireFile(model, "blob-digest"));
      const samples = aggregated.map((update) => Number(update.samples));
      const numbers = aggregate(this.rule, Number(law.faulty), vectors, samples);
      const made = this.server === null ? writeModel(numbers, this.form) : this.advance(numbers);
      require(sha256(made).equals(body.model), "model-aggregate");
      const stored = this.readFile(body.model);
      require(stored !== null, "blob-stored");
      require(stored.equals(made), "model-stored");
    }
  }

  /** The bytes of the model that the server's optimizer makes of the state's and an aggregate. */
  advance(numbers) {
    const parent = readState(this.server, this.requireBytes(this.model, "blob-digest"), this.form);
    return takeStep(this.server, parent, numbers, this.form);
  }

  requireReports({ reports }, place, height) {
    require(isAscending(reports.map(({ report }) => report.client)), "report-order");
    for (const { report, signature } of reports) {
      require(this.now.active.has(report.client), "report-member");
      require(report.round === BigInt(height + 1), "report-round");
      require(report.receipt === null || report.receipt.round === BigInt(height - 1), "receipt-round");
      this.signed(this.now, report.client, signature, "report", place, report.bytes, "report-signature");
    }
  }

  /** Who is convicted by a block's entries. */
  requireEntries(entries) {
    const evidence = entries.filter(({ kind }) => kind !== "membership");
    const numChanges = entries.length - evidence.length;
    require(numChanges === 0 || (numChanges === 1 && entries.at(-1).kind === "membership"), "change-place");
    const offenders = evidence.map((entry) => this.convict(entry));
    require(isAscending(offenders), "evidence-order");
    require(!offenders.some((offender) => this.offenders.has(offender)), "evidence-known");
    return offenders;
  }

  convict(entry) {
    if (entry.kind === "two-votes" || entry.kind === "two-updates") return this.convictOfTwo(entry);
    const blocks = entry.kind === "false-work" ? [entry.block] : [entry.first, entry.second];
    const { proposer, height, attempt } = blocks[0].header;
    require(proposer < this.now.members.length, "evidence-member");
    for (const block of blocks) {
      const { header } = block;
      const isSame = header.proposer === proposer && header.height === height && header.attempt === attempt;
      require(isSame, "evidence-attempt");
      require(header.chain.equals(this.id), "evidence-chain");
      const place = [header.chain, header.height, header.parent];
      this.signed(this.now, proposer, block.signature, "block", place, sealOf(block), "evidence-signature");
    }
    if (blocks.length === 2) require(!blockDigest(blocks[0]).equals(blockDigest(blocks[1])), "evidence-blocks");
    else require(!isWorked(this.genesis.law.work, blocks[0]), "evidence-work");
    return proposer;
  }

  convictOfTwo({ kind, place, first, second }) {
    const meaning = kind === "two-votes" ? "vote" : "update";
    const [one, other] = [first[meaning], second[meaning]];
    const offender = meaning === "vote" ? one.voter : one.client;
    require(offender < this.now.members.length, "evidence-member");
    if (meaning === "vote") {
      require(one.voter === other.voter && one.kind === other.kind && one.attempt === other.attempt, "evidence-attempt");
      require(!one.block.equals(other.block), "evidence-blocks");
    } else {
      require(one.client === other.client, "evidence-client");
      require(!one.bytes.equals(other.bytes), "evidence-updates");
    }
    require(place.chain.equals(this.id), "evidence-chain");
    const where = [place.chain, place.height, place.parent];
    for (const signed of [first, second])
      this.signed(this.now, offender, signed.signature, meaning, where, signed[meaning].bytes, "evidence-signature");
    return offender;
  }

  /** The roll of the height after the next. */
  requireChange(entries, height) {
    const found = entries.at(-1);
    if (found === undefined || found.kind !== "membership") return this.coming;
    const { change, expires, assents } = found;
    require(expires >= BigInt(height), "change-expired");
    const numbers = assents.map(({ member }) => member);
    const areKnown = numbers.every((number) => number < this.now.members.length);
    require(isAscending(numbers) && areKnown, "change-assents");
    const counted = numbers.filter((number) => this.now.active.has(number) && !this.offenders.has(number));
    require(counted.length >= this.now.quorum(this.genesis.law.quorum), "change-quorum");
    for (const { member, signature } of assents)
      this.signed(this.now, member, signature, "membership", [this.id, expires, ZERO_DIGEST], change.bytes, "change-signature");
    return this.coming.after(change, this.genesis);
  }

  requireReceipts({ modelled }, height) {
    const { physics } = this.genesis;
    const costs = costSchedule(physics, this.now.members, this.schedule, this.candidates(height), this.queue);
    for (const name of ["exchange_ns", "mining_ns", "delay_ns"]) require(modelled[name] === costs[name], "modelled-receipts");
    const isSame = modelled.energy_pj.length === costs.energy_pj.length &&
      modelled.energy_pj.every((energy, client) => energy === costs.energy_pj[client]);
    require(isSame, "modelled-receipts");
  }

  /** What a round leaves: offenders, queues, misses, rests, epsilons and conditions. */
  settle({ updates, reports }, height, convicted) {
    const heard = new Set(updates.map(({ update }) => update.client));
    const gave = new Set(updates.filter(({ update }) => update.model.length > 0).map(({ update }) => update.client));
    this.queue = this.queue.map((before, client) => {
      if (!this.conditions.has(client) || this.rests[client] >= height) return before;
      return larger(before + this.now.members[client].limits.rate_nano - (gave.has(client) ? NANO : 0n), 0n);
    });
    for (const { update } of updates) this.epsilon[update.client] = update.epsilon_micro;
    for (const client of this.schedule.selected) {
      this.misses[client] = heard.has(client) ? 0 : this.misses[client] + 1;
      if (!heard.has(client)) this.rests[client] = height + Math.min(2 ** this.misses[client] - 1, 63);
    }
    for (const offender of convicted) this.offenders.add(offender);
    const staying = reports
      .map(({ report }) => report)
      .filter(({ client }) => this.coming.active.has(client) && !this.offenders.has(client));
    this.conditions = new Map(staying.map(({ client, conditions }) => [client, conditions]));
    for (let place = this.queue.length; place < this.coming.members.length; place++) {
      this.queue.push(0n);
      this.misses.push(0);
      this.rests.push(0);
      this.epsilon.push(0n);
    }
  }
}

function readForm({ tensors, size }) {
  require(new Set(tensors.map(({ name }) => name)).size === tensors.length, "model-tensors", "two of one name");
  for (const { name, shape } of tensors) {
    require(name !== "__metadata__", "model-tensors", name);
    require(shape.every((dimension) => dimension > 0n), "model-tensors", `${name} without numbers`);
  }
  const form = fileForm(tensors);
  require(form.size === size && size <= MOST_SIZE, "model-size");
  return form;
}
