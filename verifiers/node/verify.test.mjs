/** `node --test verifiers/node`: the golden vectors of FORMAT.md, section 11, and numbers with known answers. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { blake2b } from "./argon2.mjs";
import { Chain } from "./chain.mjs";
import { Decimal, whole } from "./decimal.mjs";
import { Wrong, decode, write } from "./encoding.mjs";
import { aggregate, fileForm } from "./models.mjs";
import { isPublicKey, isSigned, merkleRoot, provenRoot, statement, workHash } from "./names.mjs";

const read = (name) => JSON.parse(readFileSync(new URL(`../../tests/vectors/${name}`, import.meta.url), "utf8"));
const vectors = read("vectors.json");
const hex = (text) => Buffer.from(text, "hex");
const LONE = Buffer.from([0x91]);

function floats(text) {
  const data = hex(text);
  return Float32Array.from({ length: data.length / 4 }, (_, place) => data.readFloatLE(4 * place));
}

test("records are read, and what is not canonical is refused", () => {
  const messages = new Set(["Message", "Gossip", "Proposal", "BlockWanted", "DecidedWanted", "Decided", "Seal"]);
  for (const { kind, bytes } of vectors.encodings)
    if (!messages.has(kind)) assert.deepEqual(decode(hex(bytes), kind).bytes, hex(bytes));
  for (const { kind, bytes, why } of vectors.bad_encodings) assert.throws(() => decode(hex(bytes), kind), Wrong, why);
});

test("integers are written as short as can be", () => {
  const forms = { 0: "00", 127: "7f", 128: "cc80", 255: "ccff", 256: "cd0100", 65535: "cdffff", 65536: "ce00010000" };
  Object.assign(forms, { "-1": "ff", "-32": "e0", "-33": "d0df", "-128": "d080", "-129": "d1ff7f", "-32769": "d2ffff7fff" });
  forms[2n ** 32n] = "cf0000000100000000";
  forms[-(2n ** 63n)] = "d38000000000000000";
  for (const [number, form] of Object.entries(forms)) assert.equal(write(BigInt(number)).toString("hex"), form);
});

test("statements, trees and work are hashed as described", () => {
  for (const { meaning, place, content, statement: expected, member, signature } of vectors.statements) {
    const where = decode(hex(place), "Place");
    const found = statement(meaning, [where.chain, where.height, where.parent], hex(content));
    assert.equal(found.toString("hex"), expected);
    assert.ok(isSigned(hex(vectors.keys[member].public), hex(signature), found));
  }
  for (const { leaves, root, proofs } of vectors.merkle) {
    assert.equal(merkleRoot(leaves.map(hex)).toString("hex"), root);
    proofs.forEach(({ index, count, siblings }, place) => {
      const proof = { index: BigInt(index), count: BigInt(count), siblings: siblings.map(hex) };
      assert.equal(provenRoot(hex(leaves[place]), proof).toString("hex"), root);
      const other = provenRoot(hex(leaves[place]), { ...proof, count: proof.count + 1n });
      assert.ok(other === null || other.toString("hex") !== root);
    });
  }
  for (const { kind, seal, nonce, hash } of vectors.work)
    assert.equal(workHash(kind, hex(seal), hex(nonce)).toString("hex"), hash);
  assert.equal(blake2b(Buffer.from("abc"), 64).toString("hex").slice(0, 32), "ba80a53f981c4d0d6a2797b69f12f6e9"); // RFC 7693
});

test("the edge cases of Ed25519 are judged as described", () => {
  for (const { why, key, message, signature, is_key, is_signed } of vectors.ed25519) {
    assert.equal(isPublicKey(hex(key)), is_key, why);
    assert.equal(isSigned(hex(key), hex(signature), hex(message)), is_signed, why);
  }
});

test("every rule of aggregation gives these bits", () => {
  for (const { rule, faulty, samples, updates, result } of vectors.aggregation)
    assert.deepEqual(aggregate(rule, faulty, updates.map(floats), samples), floats(result), rule);
});

test("names of tensors are escaped as described", () => {
  const { head } = fileForm([{ name: 'a"\\\n\u0001\u007fé', shape: [2n] }]);
  const text = '{"a\\"\\\\\\n\\u0001\u007fé":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}';
  assert.equal(head.subarray(8).toString("utf8").trimEnd(), text);
  assert.equal(head.length % 8, 0);
});

test("decimal operations are rounded once, half to even", () => {
  const is = (found, c, e) => assert.ok(found.c * 10n ** BigInt(found.e - Math.min(found.e, e)) === c * 10n ** BigInt(e - Math.min(found.e, e)), `${found.c}e${found.e}`);
  is(whole(2n).ln(), 6931471805599453094172321214581765680755n, -40);
  is(new Decimal(10n ** 32n + 1n, -32).ln(), 9999999999999999999999999999999950000000n, -72);
  is(whole(1n).over(whole(3n)), BigInt("3".repeat(40)), -40);
  is(whole(10n ** 40n).plus(whole(5n)), 10n ** 40n, 0); // a tie, to even
  is(whole(10n ** 40n + 10n).plus(whole(5n)), 10n ** 40n + 20n, 0);
  is(whole(BigInt("9".repeat(41))), BigInt("9".repeat(41)), 0); // enters exactly
  is(whole(BigInt("9".repeat(41))).times(whole(1n)), 1n, 41);
  assert.equal(new Decimal(25n, -1).count(), 2n);
  assert.equal(new Decimal(35n, -1).count(), 4n);
  assert.equal(new Decimal(-25n, -1).count(), -2n);
});

for (const name of ["chain.json", "chain-momentum.json", "chain-adam.json"])
  test(`the golden ${name} is valid and ends in the golden state; with a byte changed it does not`, () => judgeGolden(read(name)));

function judgeGolden(golden) {
  const blobs = new Map(Object.entries(golden.blobs).map(([name, data]) => [name, hex(data)]));
  const begin = () => new Chain(hex(golden.genesis), (digest) => blobs.get(digest.toString("hex")) ?? null);
  const add = (chain, place, data = hex(golden.blocks[place])) => chain.add(data, Buffer.concat([LONE, hex(golden.certificates[place])]));
  const chain = begin();
  golden.blocks.forEach((_, place) => add(chain, place));
  const { found } = golden;
  assert.equal(chain.tip.toString("hex"), found.digests.at(-1));
  assert.equal(chain.model.toString("hex"), found.model);
  assert.deepEqual(chain.queue.map(Number), found.queue_nano);
  assert.deepEqual(chain.misses, found.misses);
  assert.deepEqual(chain.rests, found.rests_until);
  assert.deepEqual([...chain.offenders].sort(), found.offenders);
  assert.deepEqual([...chain.now.active].sort(), found.active);
  assert.deepEqual(chain.epsilon.map(Number), found.epsilon_micro);
  assert.equal(Number(chain.difficulty), found.difficulty);
  assert.deepEqual(chain.times, found.times_ms);
  for (let at = 0; at < golden.blocks[0].length / 2; at += 97) {
    const changed = hex(golden.blocks[0]);
    changed[at] ^= 1;
    assert.throws(() => add(begin(), 0, changed), Wrong);
  }
}
