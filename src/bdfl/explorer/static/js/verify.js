/**
 * A chain judged by this browser, from its bytes alone: digests, links, Merkle roots, proofs of work, Ed25519
 * signatures, quorums, schedules and queues by the law of `bdfl.ledger.rules`. What the server says of a block is
 * believed nowhere here; `compareWithServer` holds it against what the bytes say.
 *
 * Hashes and signatures are WebCrypto's, which works outside this thread; between blocks the page gets its turn.
 *
 * @typedef {"ok" | "wrong" | "skipped"} CheckState
 * @typedef {{who: number, state: CheckState, what: string}} CheckItem one statement of a check, by a member
 * @typedef {{rule: string, title: string, state: CheckState, text: string, expected: string, found: string,
 *   items: CheckItem[]}} Check
 * @typedef {{height: number, digest: string|null, state: CheckState, checks: Check[], block: object|null,
 *   certificate: object[]|null, bytes: number, work: object|null}} BlockResult
 */
import { isEd25519, isPublicKey } from "./ed25519.js";
import { sayUtc } from "./format.js";
import { BadEncoding, SPAN, decodeRecord, decodeValue, encodeValue, joinBytes } from "./msgpack.js";

const STATEMENT_DOMAIN = "bdfl/1";
const FORMAT = 3;
const MEDIAN_BLOCKS = 11;
const CHANGE_BINDS_AFTER = 2;
const MOST_REST_ROUNDS = 63;
const NANO_UNIT = 1_000_000_000n;
const MOST_WHOLE = 2n ** 63n - 1n;
const ZERO_DIGEST = new Uint8Array(32);
const LONE_ARRAY = 0x91; // before the votes of a certificate, which is stored as a record of one field
const TURN_MS = 24; // work between two breaks for the page

// Bytes

/** Lower-case hexadecimal. */
export function toHexadecimal(bytes) {
  let text = "";
  for (const byte of bytes) text += byte.toString(16).padStart(2, "0");
  return text;
}

/** The bytes that hexadecimal digits name. */
export function fromHexadecimal(text) {
  return Uint8Array.from({ length: text.length / 2 }, (_, place) => parseInt(text.slice(2 * place, 2 * place + 2), 16));
}

function sameBytes(first, second) {
  return first.length === second.length && first.every((byte, place) => byte === second[place]);
}

function spanOf(bytes, record) {
  return bytes.subarray(record[SPAN][0], record[SPAN][1]);
}

function isAscending(numbers) {
  return numbers.every((number, place) => place === 0 || numbers[place - 1] < number);
}

// What this browser can do

let cryptoAnswer = null;

/** Why nothing can be verified here; an empty text where everything can. */
export function whyNotVerifiable() {
  cryptoAnswer ??= askCrypto();
  return cryptoAnswer;
}

async function askCrypto() {
  if (globalThis.crypto?.subtle === undefined)
    return "this page was opened in a way that gives it no WebCrypto (a file or plain http on another host)";
  try {
    await crypto.subtle.importKey("raw", fromHexadecimal(EXAMPLE_KEY), { name: "Ed25519" }, false, ["verify"]);
    return "";
  } catch {
    return "this browser's WebCrypto has no Ed25519 (Chromium 137, Firefox 129 and Safari 17 have)";
  }
}

const EXAMPLE_KEY = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"; // of RFC 8032

async function sha256(bytes) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
}

const importedKeys = new Map();

/** An imported key, null where WebCrypto takes it for none: a promise. */
export function importMemberKey(publicKey) {
  const name = toHexadecimal(publicKey);
  if (!importedKeys.has(name)) {
    if (importedKeys.size > 10_000) importedKeys.clear();
    const imported = crypto.subtle.importKey("raw", publicKey, { name: "Ed25519" }, false, ["verify"]);
    importedKeys.set(
      name,
      imported.catch(() => null),
    );
  }
  return importedKeys.get(name);
}

const knownSignatures = new Map(); // a vote stands in its certificate and in the next block

async function isSignedBy(publicKey, signature, meaning, place, content) {
  const statement = encodeValue([STATEMENT_DOMAIN, meaning, place, await sha256(content)]);
  const digest = await sha256(statement);
  const name = toHexadecimal(joinBytes([publicKey, signature, digest]));
  if (knownSignatures.has(name)) return knownSignatures.get(name);
  const isRight = await isEd25519(publicKey, signature, digest, importMemberKey);
  if (knownSignatures.size > 5_000) knownSignatures.clear();
  knownSignatures.set(name, isRight);
  return isRight;
}

async function merkleRoot(leaves) {
  let level = await Promise.all(leaves.map((leaf) => sha256(joinBytes([[0], leaf]))));
  while (level.length > 1) {
    const pairs = [];
    for (let place = 0; place < level.length; place += 2)
      pairs.push(
        place + 1 < level.length ? sha256(joinBytes([[1], level[place], level[place + 1]])) : level[place],
      );
    level = await Promise.all(pairs);
  }
  const count = new Uint8Array(8);
  new DataView(count.buffer).setBigUint64(0, BigInt(leaves.length));
  return sha256(joinBytes([[2], count, level[0]])); // with the number of leaves, or other trees would have this root
}

function sealBytes(bytes, signedHeader) {
  return joinBytes([[0x92], spanOf(bytes, signedHeader.header), encodeValue(signedHeader.nonce)]);
}

async function bodyRoot(bytes, body) {
  const rest = joinBytes([bytes.subarray(body[SPAN][0], body.updates[SPAN][0]), [0x90]]); // as if without updates
  return merkleRoot([rest, ...body.updates.map((signed) => spanOf(bytes, signed))]);
}

// Proof of work

/** The highest hash that serves at a difficulty: 2^256 / difficulty - 1. */
export function highestHash(difficulty) {
  return 2n ** 256n / BigInt(difficulty) - 1n;
}

/** 256 bits as 64 hexadecimal digits. */
export function hashDigits(number) {
  return number.toString(16).padStart(64, "0");
}

/** Zero bits at the beginning of a hash given in hexadecimal. */
export function leadingZeroBits(text) {
  const digits = text.length - text.replace(/^0+/, "").length;
  return digits === text.length ? 4 * digits : 4 * digits + Math.clz32(parseInt(text[digits], 16)) - 28;
}

// Members

function firstRoll(genesis) {
  return { members: genesis.members, active: new Set(genesis.members.keys()) };
}

function rollAfter(roll, change) {
  if (change.kind === "admission")
    return { members: [...roll.members, change.member], active: new Set([...roll.active, change.number]) };
  return { members: roll.members, active: new Set([...roll.active].filter((number) => number !== change.number)) };
}

/** Votes that make a block final. */
export function quorumOf(rule, numMembers) {
  return rule === "majority" ? Math.floor(numMembers / 2) + 1 : Math.floor((2 * numMembers) / 3) + 1;
}

function changeIn(block) {
  const last = block.body.entries.at(-1);
  return last !== undefined && last.kind === "membership" ? last.change : null;
}

// Checks

function passed(rule, title, text, items = []) {
  return { rule, title, state: "ok", text, expected: "", found: "", items };
}

/** Expected: what the rules require, computed here; found: what the block's bytes say. As in `bdfl chain verify`. */
function failed(rule, title, expected, found, items = []) {
  return { rule, title, state: "wrong", text: "", expected: String(expected), found: String(found), items };
}

function skipped(rule, title, why) {
  return { rule, title, state: "skipped", text: why, expected: "", found: "", items: [] };
}

function shortDigest(bytes) {
  return bytes.length === 0 ? "none" : `${toHexadecimal(bytes).slice(0, 16)}…`;
}

function plural(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

function judgeAll(checks) {
  if (checks.some((check) => check.state === "wrong")) return "wrong";
  return checks.some((check) => check.state === "ok") ? "ok" : "skipped";
}

/**
 * Where a chain stands before a block. Parts that only a walk from genesis can know are null where there was none:
 * difficulty, times, conditions, queue, misses, rests, offenders, epsilon.
 */
function startState(genesis, chain) {
  const nothing = genesis.members.map(() => 0);
  const roll = firstRoll(genesis);
  return {
    genesis,
    chain,
    height: 0,
    tip: chain,
    tipParent: ZERO_DIGEST,
    model: genesis.model.initial,
    before: roll,
    now: roll,
    coming: roll,
    schedule: genesis.schedule,
    conditions: new Set(genesis.members.keys()),
    queue: genesis.members.map(() => 0n),
    misses: nothing,
    rests: nothing,
    offenders: new Set(),
    epsilon: genesis.members.map(() => 0n),
    difficulty: BigInt(genesis.law.difficulty),
    times: [genesis.time_ms],
  };
}

/** What the genesis says, and the chain's name; raises `BadEncoding`. */
async function readChainStart(bytes) {
  const genesis = decodeRecord(bytes, "Genesis");
  if (genesis.format !== FORMAT) throw new BadEncoding(`format ${FORMAT} expected, ${genesis.format} found`);
  const wrong = genesis.members.findIndex((member) => !isPublicKey(member.public_key));
  if (wrong >= 0) throw new BadEncoding(`member ${wrong}: a key that is a canonical point not of small order expected`);
  return startState(genesis, await sha256(bytes));
}

/** The two parts of what `/raw/<height>` sends. */
function splitRaw(raw) {
  const parts = decodeValue(raw);
  if (!Array.isArray(parts) || parts.length !== 2 || !parts.every((part) => part instanceof Uint8Array))
    throw new BadEncoding("the block and its certificate expected");
  const [block, certificate] = parts;
  if (certificate[0] !== LONE_ARRAY) throw new BadEncoding("a certificate as it is stored expected");
  return [block.slice(), certificate.slice(1)];
}

/** All checks of the block after `state`, and the state after it (null where the block cannot be read). */
async function judgeBlock(state, raw) {
  const height = state.height + 1;
  const title = "The bytes are a block in its only encoding";
  let bytes, certificateBytes, block, certificate;
  try {
    [bytes, certificateBytes] = splitRaw(raw);
    block = decodeRecord(bytes, "Block");
    certificate = decodeRecord(certificateBytes, "[SignedVote]");
  } catch (error) {
    const checks = [failed("encoding", title, "canonical MessagePack of a block and its votes", error.message)];
    return { result: resultOf(height, null, checks, null, null, raw.length, null), after: null };
  }
  const digest = await sha256(sealBytes(bytes, block));
  const scene = { state, height, bytes, block, certificate, certificateBytes, digest };
  scene.place = [block.header.chain, block.header.height, block.header.parent];
  const work = await measureWork(scene);
  const checks = [
    passed("encoding", title, `${bytes.length.toLocaleString("en")} bytes, all of them read`),
    checkLink(scene),
    checkTime(scene),
    await checkBodyRoot(scene),
    await checkProposer(scene),
    checkDifficulty(scene),
    checkWork(scene, work),
    await checkParentCertificate(scene),
    await checkOwnCertificate(scene),
    checkPlayedSchedule(scene),
    await checkUpdates(scene),
    checkEmptiness(scene),
    await checkReports(scene),
    await checkEntries(scene),
    checkQueues(scene),
    skipped(
      "model",
      "The model is the aggregate of these updates",
      "not checked here: it needs the updates' weights; `bdfl chain verify` aggregates them again, bit for bit",
    ),
    skipped(
      "costs",
      "Delays, energies and the objective follow from the schedule",
      "not checked here: the law asks for 40 decimal digits; `bdfl chain verify` computes them",
    ),
  ];
  const result = resultOf(height, toHexadecimal(digest), checks, block, certificate, bytes.length, work);
  return { result, after: stateAfter(scene) };
}

function resultOf(height, digest, checks, block, certificate, bytes, work) {
  return { height, digest, state: judgeAll(checks), checks, block, certificate, bytes, work };
}

function checkLink({ state, height, block }) {
  const title = "It belongs to this chain, at this height, on this parent";
  const { header } = block;
  if (header.format !== FORMAT) return failed("link", title, `format ${FORMAT}`, `format ${header.format}`);
  if (!sameBytes(header.chain, state.chain))
    return failed("link", title, `chain ${shortDigest(state.chain)}`, `chain ${shortDigest(header.chain)}`);
  if (header.height !== height) return failed("link", title, `height ${height}`, `height ${header.height}`);
  if (state.tip === null) return skipped("link", title, `block ${height - 1} cannot be read, so the link is open`);
  if (!sameBytes(header.parent, state.tip))
    return failed(
      "link",
      title,
      `parent ${shortDigest(state.tip)}, which is the digest of ${height === 1 ? "the genesis" : `block ${height - 1}`}`,
      `parent ${shortDigest(header.parent)}`,
    );
  return passed("link", title, `its parent is ${height === 1 ? "the genesis" : `block ${height - 1}`}, by digest`);
}

const MAX_TIME_MS = 253402300799999; // the end of the year 9999

/** Later than the median time past, of an even number the earlier of the middle two; never after the calendar's end. */
function leastTime(times) {
  const median = [...times].sort((one, other) => one - other)[(times.length - 1) >> 1];
  return Math.min(median + 1, MAX_TIME_MS);
}

function checkTime({ state, block }) {
  const title = "It is later than the median of the last 11 blocks";
  if (state.times === null)
    return skipped("time", title, "it follows from the blocks before: known once the whole chain is checked");
  const [found, least] = [block.header.time_ms, leastTime(state.times)];
  if (found < least || found > MAX_TIME_MS) return failed("time", title, `at least ${sayUtc(least)}`, sayUtc(found));
  return passed("time", title, `its proposer began to mine at ${sayUtc(found)}, by its own clock`);
}

async function checkBodyRoot({ bytes, block }) {
  const title = "Its header names exactly this content";
  const root = await bodyRoot(bytes, block.body);
  if (!sameBytes(root, block.header.body))
    return failed("body", title, `Merkle root ${shortDigest(root)} of this body`, `${shortDigest(block.header.body)} in the header`);
  return passed("body", title, `the Merkle root over the body and ${plural(block.body.updates.length, "update")} fits`);
}

async function checkProposer({ state, bytes, block, place }) {
  const title = "Its proposer signed it";
  const { proposer } = block.header;
  if (!state.now.active.has(proposer)) return failed("proposer", title, "a member", `number ${proposer}, who is none`);
  const key = state.now.members[proposer].public_key;
  const isRight = await isSignedBy(key, block.signature, "block", place, sealBytes(bytes, block));
  const items = [{ who: proposer, state: isRight ? "ok" : "wrong", what: "signature" }];
  if (!isRight) return failed("proposer", title, `a signature by client ${proposer}`, "another signature", items);
  return passed("proposer", title, `the Ed25519 signature of client ${proposer} fits`, items);
}

function retargeted(state, certificate) {
  const target = BigInt(state.genesis.law.target_ms);
  if (target === 0n || certificate.length === 0) return state.difficulty;
  const waits = certificate.map(({ vote }) => BigInt(vote.mining_ms) || target).sort((one, other) => (one < other ? -1 : 1));
  const median = waits[(waits.length - 1) >> 1];
  const wanted = (state.difficulty * target) / median;
  const least = (state.difficulty + 1n) / 2n;
  const most = 2n * state.difficulty < MOST_WHOLE ? 2n * state.difficulty : MOST_WHOLE;
  if (wanted > most) return most;
  return wanted < least ? least : wanted;
}

function checkDifficulty({ state, block }) {
  const title = "The difficulty is what the chain asks for";
  if (state.difficulty === null)
    return skipped("difficulty", title, "it follows from all blocks before: known once the whole chain is checked");
  const { attempt, difficulty } = block.header;
  const halved = retargeted(state, block.body.parent_certificate) >> BigInt(attempt - 1);
  const required = halved > 1n ? halved : 1n;
  if (required !== BigInt(difficulty)) return failed("difficulty", title, `${required} hashes`, `${difficulty} hashes`);
  return passed("difficulty", title, `${plural(Number(required), "hash").replace("hashs", "hashes")} on average`);
}

/** Seal, hash (null for argon2id), target and their leading zero bits. */
async function measureWork({ state, bytes, block }) {
  const kind = state.genesis.law.work;
  const seal = await sha256(spanOf(bytes, block.header));
  const target = hashDigits(highestHash(block.header.difficulty));
  const hash = kind === "sha256" ? toHexadecimal(await sha256(joinBytes([seal, block.nonce]))) : null;
  return { kind, target, hash, targetZeros: leadingZeroBits(target), hashZeros: hash === null ? null : leadingZeroBits(hash) };
}

function checkWork({ block }, work) {
  const title = "Its nonce is a proof of work";
  if (work.hash === null)
    return skipped("work", title, `not checked here: ${work.kind}; \`bdfl chain verify\` does`);
  if (work.hash > work.target)
    return failed("work", title, `a hash of at most ${work.target.slice(0, 16)}…`, `${work.hash.slice(0, 16)}…`);
  return passed("work", title, `the hash is below 2^256 / ${block.header.difficulty}`);
}

async function checkVotes({ state, roll, rule, title, votes, bytes, digest, place, height }) {
  const quorum = quorumOf(state.genesis.law.quorum, roll.active.size);
  const items = await Promise.all(
    votes.map(async (signed) => {
      const { vote } = signed;
      const wrong = (what) => ({ who: vote.voter, state: "wrong", what });
      if (!roll.active.has(vote.voter)) return wrong("no member at this height");
      if (vote.kind !== "precommit") return wrong("a prevote, which makes nothing final");
      if (!sameBytes(vote.block, digest)) return wrong(`for another block: ${shortDigest(vote.block)}`);
      if (vote.attempt !== votes[0].vote.attempt) return wrong(`of another attempt: ${vote.attempt}`);
      if (![vote.updates, vote.reports].every((held) => isAscending(held) && held.every((one) => roll.active.has(one))))
        return wrong("lists holdings that are no member's");
      const key = roll.members[vote.voter].public_key;
      const isRight = await isSignedBy(key, signed.signature, "vote", place, spanOf(bytes, vote));
      return isRight ? { who: vote.voter, state: "ok", what: "signature" } : wrong("another signature");
    }),
  );
  const bad = items.find((item) => item.state === "wrong");
  if (bad) return failed(rule, title, `a vote of client ${bad.who} for block ${height}`, bad.what, items);
  if (!isAscending(votes.map((signed) => signed.vote.voter)))
    return failed(rule, title, "different voters in ascending order", "another order", items);
  if (votes.length < quorum) return failed(rule, title, `at least ${plural(quorum, "vote")}`, votes.length, items);
  return passed(
    rule,
    title,
    `${votes.length} of ${roll.active.size} members signed for it, ${quorum} are a quorum (${state.genesis.law.quorum})`,
    items,
  );
}

async function checkParentCertificate({ state, height, bytes, block }) {
  const title = "It carries the votes that made its parent final";
  const votes = block.body.parent_certificate;
  if (height === 1)
    return votes.length === 0
      ? passed("parent-certificate", title, "the genesis needs none")
      : failed("parent-certificate", title, "no votes for the genesis", votes.length);
  if (state.tipParent === null)
    return skipped("parent-certificate", title, `block ${height - 1} cannot be read, and with it who may vote for it`);
  return checkVotes({
    state,
    roll: state.before,
    rule: "parent-certificate",
    title,
    votes,
    bytes,
    digest: block.header.parent,
    place: [block.header.chain, height - 1, state.tipParent],
    height: height - 1,
  });
}

function checkOwnCertificate({ state, height, certificate, certificateBytes, digest, place }) {
  return checkVotes({
    state,
    roll: state.now,
    rule: "certificate",
    title: "A quorum of the members voted for it",
    votes: certificate,
    bytes: certificateBytes,
    digest,
    place,
    height,
  });
}

/** A schedule as text: equal texts, equal schedules. */
function scheduleText(schedule) {
  return JSON.stringify(schedule, (_, value) => (typeof value === "bigint" ? `${value}` : value));
}

function checkPlayedSchedule({ state, height, block }) {
  const title = "The round was played under the schedule its parent fixed";
  if (state.schedule === null) return skipped("schedule", title, `block ${height - 1} cannot be read`);
  if (scheduleText(state.schedule) !== scheduleText(block.body.schedule))
    return failed(
      "schedule",
      title,
      `the schedule of ${height === 1 ? "the genesis" : `block ${height - 1}`}: clients ${state.schedule.selected.join(", ")}`,
      `another one: clients ${block.body.schedule.selected.join(", ")}`,
    );
  return passed("schedule", title, `clients ${block.body.schedule.selected.join(", ") || "none"}`);
}

/** Why an update cannot have spent what it says; an empty text where it can. */
function epsilonMistake(state, update) {
  const spent = BigInt(update.epsilon_micro);
  if (state.genesis.privacy === null || update.samples === 0)
    return spent === 0n ? "" : "an epsilon where nothing is private";
  const before = state.epsilon?.[update.client] ?? 0n;
  const least = update.model.length > 0 && before === 0n ? 1n : before;
  return spent >= least ? "" : `an epsilon of ${spent} millionths, below the ${least} it must have spent`;
}

async function checkUpdates({ state, bytes, block, place }) {
  const title = "Every update is a scheduled member's own";
  const { updates, schedule } = block.body;
  const items = await Promise.all(
    updates.map(async (signed) => {
      const { update } = signed;
      const wrong = (what) => ({ who: update.client, state: "wrong", what });
      if (!state.now.active.has(update.client)) return wrong("no member at this height");
      if (!schedule.selected.includes(update.client)) return wrong("not scheduled in this round");
      if (state.offenders?.has(update.client)) return wrong("a proven offender");
      const member = state.now.members[update.client];
      if (update.samples !== member.limits.samples) return wrong(`${update.samples} samples stated`);
      if (update.size !== (update.model.length === 0 ? 0 : state.genesis.model.size)) return wrong("of another size");
      if (update.model.length > 0 && update.samples === 0 && state.model !== null && !sameBytes(update.model, state.model))
        return wrong("a new model without data");
      const mistake = epsilonMistake(state, update);
      if (mistake) return wrong(mistake);
      const isRight = await isSignedBy(member.public_key, signed.signature, "update", place, spanOf(bytes, update));
      return isRight ? { who: update.client, state: "ok", what: "signature" } : wrong("another signature");
    }),
  );
  const bad = items.find((item) => item.state === "wrong");
  if (bad) return failed("updates", title, `an update signed by client ${bad.who} for this round`, bad.what, items);
  if (!isAscending(updates.map((signed) => signed.update.client)))
    return failed("updates", title, "different clients in ascending order", "another order", items);
  return passed("updates", title, updates.length ? `${plural(updates.length, "signature")} fit` : "there are none", items);
}

function checkEmptiness({ state, block }) {
  const title = "It is empty exactly if too few updates came";
  const counted = block.body.updates.filter(({ update }) => update.model.length > 0 && update.samples > 0).length;
  const isEmpty = counted < state.genesis.law.min_updates;
  if (isEmpty !== block.body.is_empty)
    return failed("empty", title, ...[isEmpty, block.body.is_empty].map((one) => (one ? "an empty block" : "a block with a new model")));
  if (isEmpty && state.model !== null && !sameBytes(block.body.model, state.model))
    return failed("empty", title, `the parent's model ${shortDigest(state.model)}`, shortDigest(block.body.model));
  return passed("empty", title, isEmpty ? "empty: the model stays" : `${plural(counted, "update")} to aggregate`);
}

async function checkReports({ state, height, bytes, block, place }) {
  const title = "Every report is a member's own, for the next round";
  const { reports } = block.body;
  const items = await Promise.all(
    reports.map(async (signed) => {
      const { report } = signed;
      const wrong = (what) => ({ who: report.client, state: "wrong", what });
      if (!state.now.active.has(report.client)) return wrong("no member at this height");
      if (report.round !== height + 1) return wrong(`for round ${report.round}`);
      if (report.receipt !== null && report.receipt.round !== height - 1)
        return wrong(`with a receipt of round ${report.receipt.round}`);
      const key = state.now.members[report.client].public_key;
      const isRight = await isSignedBy(key, signed.signature, "report", place, spanOf(bytes, report));
      return isRight ? { who: report.client, state: "ok", what: "signature" } : wrong("another signature");
    }),
  );
  const bad = items.find((item) => item.state === "wrong");
  if (bad) return failed("reports", title, `a report signed by client ${bad.who} for round ${height + 1}`, bad.what, items);
  if (!isAscending(reports.map((signed) => signed.report.client)))
    return failed("reports", title, "different clients in ascending order", "another order", items);
  return passed("reports", title, reports.length ? `${plural(reports.length, "signature")} fit` : "there are none", items);
}

// Evidence and changes of membership

async function checkEntries(scene) {
  const title = "Its entries prove what they say";
  const { entries } = scene.block.body;
  const changes = entries.filter((entry) => entry.kind === "membership");
  if (changes.length > 1 || (changes.length === 1 && entries.at(-1) !== changes[0]))
    return failed("entries", title, "at most one change of membership, at the end", "another one");
  const items = await Promise.all(
    entries.map(async (entry) => {
      const [who, what] = await (entry.kind === "membership" ? judgeChange(scene, entry) : judgeEvidence(scene, entry));
      return { who, state: what === "" ? "ok" : "wrong", what: what || entry.kind };
    }),
  );
  const bad = items.find((item) => item.state === "wrong");
  if (bad) return failed("entries", title, "a proof", `${bad.what} (client ${bad.who})`, items);
  const offenders = items.filter((_, place) => entries[place].kind !== "membership").map((item) => item.who);
  if (!isAscending(offenders)) return failed("entries", title, "different offenders in ascending order", "another order", items);
  const known = offenders.find((offender) => scene.state.offenders?.has(offender));
  if (known !== undefined) return failed("entries", title, "a new offender", `client ${known}, known already`, items);
  if (entries.length === 0) return passed("entries", title, "there are none");
  const argon = entries.some((entry) => entry.kind === "false-work") && scene.state.genesis.law.work !== "sha256";
  return passed("entries", title, `all signatures of ${entries.length === 1 ? "its entry" : `${entries.length} entries`} fit` +
    (argon ? "; argon2id hashes are not computed here" : ""), items);
}

/** The member that evidence is against and why it proves nothing; an empty text: it does. */
async function judgeEvidence({ state, bytes }, entry) {
  if (entry.kind === "two-votes" || entry.kind === "two-updates") {
    const [meaning, author] = entry.kind === "two-votes" ? ["vote", "voter"] : ["update", "client"];
    const [first, second] = [entry.first[meaning], entry.second[meaning]];
    const who = first[author];
    const same = meaning === "vote" ? ["voter", "kind", "attempt"] : ["client"];
    if (same.some((name) => first[name] !== second[name])) return [who, "the two are not of one kind"];
    const isEqual = meaning === "vote" ? sameBytes(first.block, second.block) : sameBytes(spanOf(bytes, first), spanOf(bytes, second));
    if (isEqual) return [who, "the same thing twice"];
    if (who >= state.now.members.length || !sameBytes(entry.place.chain, state.chain)) return [who, "of no member of this chain"];
    const place = [entry.place.chain, entry.place.height, entry.place.parent];
    const key = state.now.members[who].public_key;
    const fits = await Promise.all(
      [entry.first, entry.second].map((signed) => isSignedBy(key, signed.signature, meaning, place, spanOf(bytes, signed[meaning]))),
    );
    return [who, fits.every(Boolean) ? "" : "another signature"];
  }
  const blocks = entry.kind === "false-work" ? [entry.block] : [entry.first, entry.second];
  const { proposer, height, attempt } = blocks[0].header;
  if (blocks.some(({ header }) => header.proposer !== proposer || header.height !== height || header.attempt !== attempt))
    return [proposer, "the two are not of one attempt"];
  if (proposer >= state.now.members.length || blocks.some(({ header }) => !sameBytes(header.chain, state.chain)))
    return [proposer, "of no member of this chain"];
  const seals = blocks.map((block) => sealBytes(bytes, block));
  if (seals.length === 2 && sameBytes(seals[0], seals[1])) return [proposer, "the same block twice"];
  const key = state.now.members[proposer].public_key;
  const fits = await Promise.all(
    blocks.map(({ header, signature }, place) =>
      isSignedBy(key, signature, "block", [header.chain, header.height, header.parent], seals[place]),
    ),
  );
  if (!fits.every(Boolean)) return [proposer, "another signature"];
  if (entry.kind === "false-work") {
    const work = await measureWork({ state, bytes, block: entry.block });
    if (work.hash !== null && work.hash <= work.target) return [proposer, "the work is not false"];
  }
  return [proposer, ""];
}

async function judgeChange({ state, height, bytes }, entry) {
  const { change, expires, assents } = entry;
  const numbers = assents.map((assent) => assent.member);
  if (expires < height) return [change.number, `expired at height ${expires}`];
  if (!isAscending(numbers) || numbers.some((number) => number >= state.now.members.length))
    return [change.number, "assents of no members"];
  const counted = numbers.filter((number) => state.now.active.has(number) && !state.offenders?.has(number)).length;
  const quorum = quorumOf(state.genesis.law.quorum, state.now.active.size);
  if (counted < quorum) return [change.number, `${plural(counted, "assent")}, ${quorum} are a quorum`];
  if (change.kind === "admission" && !isPublicKey(change.member.public_key))
    return [change.number, "a key of small order or not in its only form"];
  const place = [state.chain, expires, ZERO_DIGEST];
  const fits = await Promise.all(
    assents.map((assent) =>
      isSignedBy(state.now.members[assent.member].public_key, assent.signature, "membership", place, spanOf(bytes, change)),
    ),
  );
  return [change.number, fits.every(Boolean) ? "" : "another signature under the change"];
}

// Queues and what follows from a block

function settledQueues({ state, block }, height) {
  const tookPart = new Set(block.body.updates.filter(({ update }) => update.model.length > 0).map(({ update }) => update.client));
  return state.queue.map((before, client) => {
    if (!state.conditions.has(client) || state.rests[client] >= height) return before;
    const grown = before + BigInt(state.now.members[client].limits.rate_nano) - (tookPart.has(client) ? NANO_UNIT : 0n);
    return grown > 0n ? grown : 0n;
  });
}

function checkQueues(scene) {
  const title = "The queues are those after this round";
  const { state, height, block } = scene;
  if (state.queue === null)
    return skipped("queues", title, "they follow from all blocks before: known once the whole chain is checked");
  const newcomers = state.coming.members.length - state.queue.length;
  const expected = [...settledQueues(scene, height), ...new Array(Math.max(0, newcomers)).fill(0n)];
  const found = block.body.queue_nano.map(BigInt);
  const wrong = expected.findIndex((queue, client) => queue !== found[client]);
  if (found.length !== expected.length)
    return failed("queues", title, `${plural(expected.length, "queue")}`, found.length);
  if (wrong >= 0)
    return failed("queues", title, `client ${wrong}: ${Number(expected[wrong]) / 1e9}`, Number(found[wrong]) / 1e9);
  return passed("queues", title, `${plural(expected.length, "queue")} derived again`);
}

/** The state after a block, believing what it says; null where nothing can follow. */
function stateAfter(scene) {
  const { state, height, block, digest } = scene;
  const { body, header } = block;
  const change = changeIn(block);
  const isWhole = state.queue !== null;
  const after = {
    ...state,
    height,
    tip: digest,
    tipParent: header.parent,
    model: body.model,
    before: state.now,
    now: state.coming,
    coming: change === null ? state.coming : rollAfter(state.coming, change),
    schedule: body.next_schedule,
  };
  if (!isWhole) return after;
  const heard = new Set(body.updates.map(({ update }) => update.client));
  const room = new Array(Math.max(0, state.coming.members.length - state.queue.length)).fill(0);
  after.difficulty = retargeted(state, body.parent_certificate);
  after.times = [...state.times, header.time_ms].slice(-MEDIAN_BLOCKS);
  after.queue = [...settledQueues(scene, height), ...room.map(BigInt)];
  after.misses = [...state.misses, ...room];
  after.rests = [...state.rests, ...room];
  after.epsilon = [...state.epsilon, ...room.map(BigInt)];
  for (const { update } of body.updates) after.epsilon[update.client] = BigInt(update.epsilon_micro);
  for (const client of state.schedule.selected) {
    after.misses[client] = heard.has(client) ? 0 : state.misses[client] + 1;
    if (!heard.has(client)) after.rests[client] = height + Math.min(2 ** after.misses[client] - 1, MOST_REST_ROUNDS);
  }
  after.offenders = new Set([...state.offenders, ...body.entries.filter((entry) => entry.kind !== "membership").map(offenderIn)]);
  after.conditions = new Set(
    body.reports
      .map(({ report }) => report.client)
      .filter((client) => state.coming.active.has(client) && !after.offenders.has(client)),
  );
  return after;
}

/** Whom evidence is against. */
export function offenderIn(entry) {
  if (entry.kind === "two-votes") return entry.first.vote.voter;
  if (entry.kind === "two-updates") return entry.first.update.client;
  return (entry.kind === "false-work" ? entry.block : entry.first).header.proposer;
}

// From genesis to the tip

function pause() {
  return new Promise((resolve) => {
    setTimeout(resolve, 0);
  });
}

/**
 * A walk along a chain that can be gone on with when the chain has grown: `advance` judges blocks up to a height and
 * stops at the first that is wrong, as `bdfl chain verify` does.
 */
export class ChainWalk {
  constructor(readGenesis, readBlock) {
    this.readGenesis = readGenesis;
    this.readBlock = readBlock;
    this.state = null;
    /** @type {{state: CheckState, why: string, chain: string|null, height: number, last: number, digests: string[],
     *   numSignatures: number, numBytes: number, failure: {height: number, rule: string, title: string,
     *   expected: string, found: string}|null}} */
    this.verdict = {
      state: "ok",
      why: "",
      chain: null,
      height: 0,
      last: 0,
      digests: [],
      numSignatures: 0,
      numBytes: 0,
      failure: null,
    };
    this.running = null;
    this.numWalkers = 0; // who waits for it to go on
    this.missing = null; // height of a block whose bytes could not be had
  }

  /** The verdict up to `last` (or as far as blocks can be read), told on the way; runs one at a time. */
  advance(last, onProgress, signal) {
    const turn = (this.running ?? Promise.resolve()).then(() => this.walk(last, onProgress, signal));
    this.running = turn.catch(() => undefined);
    return turn;
  }

  async walk(last, onProgress, signal) {
    const { verdict } = this;
    verdict.why = await whyNotVerifiable();
    if (verdict.why !== "") {
      verdict.state = "skipped";
      return verdict;
    }
    verdict.last = Math.max(verdict.last, last);
    if (this.state === null && verdict.failure === null) await this.begin();
    let turnBegan = performance.now();
    this.missing = null;
    while (verdict.failure === null && verdict.height < last && !signal?.aborted) {
      const raw = await this.readBlock(verdict.height + 1);
      if (raw === null) {
        this.missing = verdict.height + 1;
        break;
      }
      await this.step(raw);
      if (performance.now() - turnBegan > TURN_MS) {
        onProgress?.(verdict, null);
        await pause();
        turnBegan = performance.now();
      }
    }
    onProgress?.(verdict, null);
    return verdict;
  }

  async begin() {
    try {
      const bytes = await this.readGenesis();
      this.state = await readChainStart(bytes);
      this.verdict.chain = toHexadecimal(this.state.chain);
      this.verdict.numBytes = bytes.length;
    } catch (error) {
      this.fail(0, failed("encoding", "The genesis can be read", "a genesis in its only encoding", error.message));
    }
  }

  async step(raw) {
    const { verdict } = this;
    const height = verdict.height + 1;
    const { result, after } = await judgeBlock(this.state, raw);
    const wrong = result.checks.find((check) => check.state === "wrong");
    verdict.numBytes += result.bytes;
    if (wrong) {
      this.fail(height, wrong);
      return;
    }
    for (const check of result.checks) verdict.numSignatures += check.rule === "entries" ? 0 : check.items.length;
    verdict.digests[height] = result.digest;
    verdict.height = height;
    this.state = after;
  }

  fail(height, check) {
    const { rule, title, expected, found } = check;
    this.verdict.state = "wrong";
    this.verdict.failure = { height, rule, title, expected, found };
  }
}

/**
 * The verdict on a whole chain. `readGenesis()` gives the bytes of `/raw/genesis`, `readBlock(height)` those of
 * `/raw/<height>` or null past the tip; `onProgress(verdict)` hears of it several times a second.
 */
export function verifyChain(readGenesis, readBlock, onProgress, options = {}) {
  const walk = new ChainWalk(readGenesis, readBlock);
  return walk.advance(options.last ?? Number.MAX_SAFE_INTEGER, onProgress, options.signal);
}

/**
 * One block judged by itself, its parent and the members of its height: no walk from genesis. `changeHeights` are the
 * blocks before it that changed the members; their bytes are read for it.
 *
 * @returns {Promise<BlockResult & {why: string, memberKeys: string[]}>}
 */
export async function verifyBlock(readGenesis, readBlock, height, changeHeights = []) {
  const why = await whyNotVerifiable();
  if (why !== "") return { ...resultOf(height, null, [], null, null, 0, null), state: "skipped", why, memberKeys: [] };
  const raw = await readBlock(height);
  if (raw === null) {
    const check = failed("encoding", "The bytes are a block in its only encoding", "a block", "no bytes that can be read");
    return { ...resultOf(height, null, [check], null, null, 0, null), why: "", memberKeys: [] };
  }
  let state;
  try {
    state = await readChainStart(await readGenesis());
  } catch (error) {
    const check = failed("encoding", "The genesis can be read", "a genesis in its only encoding", error.message);
    return { ...resultOf(height, null, [check], null, null, raw.length, null), why: "", memberKeys: [] };
  }
  if (height > 1) state = await stateBefore(state, readBlock, height, changeHeights);
  const { result } = await judgeBlock(state, raw);
  return { ...result, why: "", memberKeys: state.now.members.map((member) => toHexadecimal(member.public_key)) };
}

async function stateBefore(start, readBlock, height, changeHeights) {
  const rolls = { before: start.now, now: start.now, coming: start.now };
  for (const changed of changeHeights.filter((one) => one < height)) {
    const block = await tryBlock(readBlock, changed);
    const change = block === null ? null : changeIn(block.block);
    if (change === null) continue;
    for (const [name, at] of [["before", height - 1], ["now", height], ["coming", height + 1]])
      if (changed + CHANGE_BINDS_AFTER <= at) rolls[name] = rollAfter(rolls[name], change);
  }
  const parent = await tryBlock(readBlock, height - 1);
  return {
    ...start,
    ...rolls,
    height: height - 1,
    tip: parent === null ? null : await sha256(sealBytes(parent.bytes, parent.block)),
    tipParent: parent?.block.header.parent ?? null,
    model: parent?.block.body.model ?? null,
    schedule: parent?.block.body.next_schedule ?? null,
    conditions: null,
    queue: null,
    misses: null,
    rests: null,
    offenders: null,
    epsilon: null,
    times: null,
    // Without a target the difficulty never changes.
    difficulty: start.genesis.law.target_ms === 0 ? start.difficulty : null,
  };
}

async function tryBlock(readBlock, height) {
  try {
    const [bytes] = splitRaw(await readBlock(height));
    return { bytes, block: decodeRecord(bytes, "Block") };
  } catch {
    return null;
  }
}

// What the server says against what the bytes say

function isNear(first, second) {
  const [one, other] = [Number(first), Number(second)];
  return Math.abs(one - other) <= 1e-6 * Math.max(Math.abs(one), Math.abs(other)) + 1e-12;
}

function isSaidSame(said, found) {
  if (Array.isArray(found))
    return Array.isArray(said) && said.length === found.length && found.every((item, place) => isSaidSame(said[place], item));
  if (found !== null && typeof found === "object")
    return said !== null && typeof said === "object" && Object.entries(found).every(([name, value]) => isSaidSame(said[name], value));
  if (typeof found === "number" && typeof said === "number") return isNear(said, found);
  return said === found;
}

function sayValue(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text === undefined ? "nothing" : text.length > 90 ? `${text.slice(0, 88)}…` : text;
}

function spreadOver(numMembers, selected, values) {
  const spread = new Array(numMembers).fill(0);
  selected.forEach((client, place) => {
    spread[client] = Number(values[place]);
  });
  return spread;
}

function plainSchedule(schedule) {
  const num = schedule.mining_hz.length;
  return {
    round: schedule.round,
    selected: [...schedule.selected],
    cpu_hz: spreadOver(num, schedule.selected, schedule.cpu_hz),
    power_w: spreadOver(num, schedule.selected, schedule.power_uw).map((value) => value / 1e6),
    mining_hz: schedule.mining_hz.map(Number),
    reason: schedule.reason,
  };
}

/** The content of a block as the server's JSON twin should have it, made of the bytes alone. */
export function plainFromBytes(result) {
  const { block, certificate, digest, work } = result;
  const { header, body } = block;
  return {
    height: header.height,
    digest,
    parent: toHexadecimal(header.parent),
    proposer: header.proposer,
    attempt: header.attempt,
    difficulty: Number(header.difficulty),
    time_ms: header.time_ms,
    work: work.kind,
    ...(work.hash === null ? {} : { work_hash: work.hash }),
    nonce: toHexadecimal(block.nonce),
    signature: toHexadecimal(block.signature),
    body: toHexadecimal(header.body),
    model: toHexadecimal(body.model),
    is_empty: body.is_empty,
    schedule: plainSchedule(body.schedule),
    next_schedule: plainSchedule(body.next_schedule),
    updates: body.updates.map(({ update, signature }) => ({
      client: update.client,
      samples: Number(update.samples),
      size: Number(update.size),
      model: update.model.length === 0 ? null : toHexadecimal(update.model),
      epsilon: Number(update.epsilon_micro) / 1e6,
      signature: toHexadecimal(signature),
    })),
    reports: body.reports.map(({ report, signature }) => ({
      client: report.client,
      gain: Number(report.conditions.gain_atto) / 1e18,
      energy_budget_j: Number(report.conditions.energy_budget_pj) / 1e12,
      is_reachable: report.conditions.is_reachable,
      receipt:
        report.receipt === null
          ? null
          : {
              round: report.receipt.round,
              energy_j: Number(report.receipt.energy_pj) / 1e12,
              training_s: Number(report.receipt.training_ns) / 1e9,
              upload_s: Number(report.receipt.upload_ns) / 1e9,
              mining_s: Number(report.receipt.mining_ns) / 1e9,
            },
      signature: toHexadecimal(signature),
    })),
    votes: certificate.map(({ vote, signature }) => ({
      voter: vote.voter,
      mining_ms: Number(vote.mining_ms),
      signature: toHexadecimal(signature),
      attempt: vote.attempt,
      block: toHexadecimal(vote.block),
      updates: [...vote.updates],
      reports: [...vote.reports],
    })),
    queue: body.queue_nano.map((queue, client) => ({ client, after: Number(queue) / 1e9 })),
    modelled: {
      exchange_s: Number(body.modelled.exchange_ns) / 1e9,
      mining_s: Number(body.modelled.mining_ns) / 1e9,
      delay_s: Number(body.modelled.delay_ns) / 1e9,
      energy_j: body.modelled.energy_pj.map((energy) => Number(energy) / 1e12),
    },
    entries: body.entries.map((entry) => ({ kind: entry.kind })),
  };
}

const LISTED_FIELDS = { updates: "client", reports: "client", votes: "voter", queue: "client" };

/**
 * Where the JSON twin of a block says something else than its bytes; empty where it is honest.
 * @param {BlockResult} result
 * @param {object} document the JSON twin
 * @returns {{field: string, said: string, found: string}[]}
 */
export function compareWithServer(result, document) {
  if (result.block === null) return [];
  const lies = [];
  const note = (field, said, found) => lies.push({ field, said: sayValue(said), found: sayValue(found) });
  for (const [name, found] of Object.entries(plainFromBytes(result))) {
    const said = document[name];
    if (isSaidSame(said, found)) continue;
    const author = LISTED_FIELDS[name];
    if (author === undefined || !Array.isArray(said)) {
      compareFields(name, said, found, note);
      continue;
    }
    if (said.length !== found.length) note(name, `${said.length} of them`, `${found.length} of them`);
    found.forEach((item, place) => {
      if (place < said.length && !isSaidSame(said[place], item))
        compareFields(`${name}, client ${item[author]}`, said[place], item, note);
    });
  }
  return lies;
}

function compareFields(name, said, found, note) {
  if (found === null || typeof found !== "object" || Array.isArray(found) || said === null || typeof said !== "object") {
    note(name, said, found);
    return;
  }
  for (const [field, value] of Object.entries(found))
    if (!isSaidSame(said[field], value)) note(`${name}, ${field.replaceAll("_", " ")}`, said[field], value);
}
