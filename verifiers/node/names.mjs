/** Names, trees, signatures and work: FORMAT.md, sections 2 to 5. */
import { createHash, createPublicKey, verify } from "node:crypto";
import { argon2id } from "./argon2.mjs";
import { require, write } from "./encoding.mjs";

export function sha256(...parts) {
  const hash = createHash("sha256");
  for (const part of parts) hash.update(part);
  return hash.digest();
}

/** The bytes of Seal: [header, nonce]. */
export function sealOf({ header, nonce }) {
  return Buffer.concat([Buffer.from([0x92]), header.bytes, write(nonce)]);
}

export function blockDigest(block) {
  return sha256(sealOf(block));
}

// Section 3

const [LEAF, NODE, ROOT] = [Buffer.from([0]), Buffer.from([1]), Buffer.from([2])];

function rootOf(count, top) {
  const eight = Buffer.alloc(8);
  eight.writeBigUInt64BE(BigInt(count));
  return sha256(ROOT, eight, top);
}

export function merkleRoot(leaves) {
  let level = leaves.map((leaf) => sha256(LEAF, leaf));
  while (level.length > 1) {
    const above = [];
    for (let place = 0; place < level.length; place += 2)
      above.push(place + 1 < level.length ? sha256(NODE, level[place], level[place + 1]) : level[place]);
    level = above;
  }
  return rootOf(leaves.length, level[0]);
}

/** The root that a proof leads to from a leaf; null if it has no meaning. */
export function provenRoot(leaf, { index, count, siblings }) {
  if (index >= count) return null;
  let [node, place, width, used] = [sha256(LEAF, leaf), index, count, 0];
  while (width > 1n) {
    if ((place ^ 1n) < width) {
      if (used === siblings.length) return null;
      const beside = siblings[used++];
      node = place & 1n ? sha256(NODE, beside, node) : sha256(NODE, node, beside);
    }
    [place, width] = [place / 2n, (width + 1n) / 2n];
  }
  return used === siblings.length ? rootOf(count, node) : null;
}

export function bodyRoot(body) {
  const rest = body.bytes.subarray(0, body.bytes.length - body.updates.bytes.length); // updates come last
  return merkleRoot([Buffer.concat([rest, Buffer.from([0x90])]), ...body.updates.map((update) => update.bytes)]);
}

// Section 4

const P = 2n ** 255n - 19n;
const D = 37095705934669439343138083508754565189542113879843219016388785533085940283555n; // -121665 / 121666
const E = 0x05fc536d880238b13933c6d305acdfd5f098eff289f4c345b027b2c28f95e826n;
const SMALL = new Set([0n, 1n, P - 1n, E, P - E, P, P + 1n]);
const SPKI = Buffer.from("302a300506032b6570032100", "hex");

function yOf(point) {
  return BigInt.asUintN(255, BigInt(`0x${Buffer.from(point.subarray(0, 32)).reverse().toString("hex")}`));
}

function power(base, exponent) {
  let [result, square] = [1n, ((base % P) + P) % P];
  for (let left = exponent; left > 0n; left >>= 1n) {
    if (left & 1n) result = (result * square) % P;
    square = (square * square) % P;
  }
  return result;
}

const judged = new Map();

export function isPublicKey(key) {
  const name = key.toString("latin1");
  if (!judged.has(name)) {
    if (judged.size > 10_000) judged.clear();
    const y = yOf(key);
    const isPoint = power((y * y - 1n) * (D * y * y + 1n), (P - 1n) / 2n) === 1n;
    judged.set(name, y < P && !SMALL.has(y) && isPoint);
  }
  return judged.get(name);
}

const imported = new Map();

export function isSigned(key, signature, message) {
  if (!isPublicKey(key) || SMALL.has(yOf(signature))) return false;
  const name = key.toString("latin1");
  if (!imported.has(name)) {
    if (imported.size > 10_000) imported.clear();
    imported.set(name, createPublicKey({ key: Buffer.concat([SPKI, key]), format: "der", type: "spki" }));
  }
  return verify(null, message, imported.get(name), signature);
}

export function statement(meaning, place, content) {
  return sha256(write(["bdfl/1", meaning, place, sha256(content)]));
}

export function requireSigned(key, signature, meaning, place, content, rule) {
  require(isSigned(key, signature, statement(meaning, place, content)), rule);
}

// Section 5

const SALT = Buffer.from("bdfl/1 proofwork", "latin1");

export function workHash(kind, seal, nonce) {
  const message = Buffer.concat([seal, nonce]);
  return kind === "sha256" ? sha256(message) : argon2id(message, SALT);
}

export function isWorked(kind, { header, nonce }) {
  const hashed = workHash(kind, sha256(header.bytes), nonce);
  return BigInt(`0x${hashed.toString("hex")}`) < 2n ** 256n / header.difficulty;
}
