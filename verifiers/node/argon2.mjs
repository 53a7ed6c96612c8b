/** Argon2id of section 5: version 0x13, 1024 KiB, one pass, one lane, 32 bytes [RFC 9106]. */
import { createHash } from "node:crypto";

const NUM_BLOCKS = 1024;
const SEGMENT = 256;
const WORDS = 256; // of 32 bits in a block of 1 KiB
const TAG_SIZE = 32;
const TYPE = 2; // Argon2id
const PER_ADDRESSES = 128;

const IV = [
  0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
];
const SIGMA = [
  [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
  [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
  [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
  [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
  [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
  [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
  [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
  [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
  [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
  [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];
const COLUMNS = [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]];
const DIAGONALS = [[0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14]];
const MASK = 2n ** 64n - 1n;

/** BLAKE2b of any size up to 64 bytes [RFC 7693]; OpenSSL offers 64 alone. */
export function blake2b(data, size) {
  const state = [...IV];
  state[0] ^= BigInt(0x01010000 | size);
  const count = Math.max(1, Math.ceil(data.length / 128));
  for (let place = 0; place < count; place++) {
    const block = Buffer.alloc(128);
    data.copy(block, 0, 128 * place, Math.min(data.length, 128 * (place + 1)));
    const isLast = place === count - 1;
    compress(state, block, BigInt(isLast ? data.length : 128 * (place + 1)), isLast);
  }
  const found = Buffer.alloc(64);
  state.forEach((word, place) => found.writeBigUInt64LE(word, 8 * place));
  return found.subarray(0, size);
}

function compress(state, block, counter, isLast) {
  const words = Array.from({ length: 16 }, (_, place) => block.readBigUInt64LE(8 * place));
  const v = [...state, ...IV];
  v[12] ^= counter;
  if (isLast) v[14] ^= MASK;
  const turn = (word, by) => (word >> by) | ((word << (64n - by)) & MASK);
  for (let round = 0; round < 12; round++) {
    const order = SIGMA[round % 10];
    [...COLUMNS, ...DIAGONALS].forEach(([a, b, c, d], place) => {
      v[a] = (v[a] + v[b] + words[order[2 * place]]) & MASK;
      v[d] = turn(v[d] ^ v[a], 32n);
      v[c] = (v[c] + v[d]) & MASK;
      v[b] = turn(v[b] ^ v[c], 24n);
      v[a] = (v[a] + v[b] + words[order[2 * place + 1]]) & MASK;
      v[d] = turn(v[d] ^ v[a], 16n);
      v[c] = (v[c] + v[d]) & MASK;
      v[b] = turn(v[b] ^ v[c], 63n);
    });
  }
  for (let place = 0; place < 8; place++) state[place] ^= v[place] ^ v[place + 8];
}

function little(...numbers) {
  const found = Buffer.alloc(4 * numbers.length);
  numbers.forEach((number, place) => found.writeUInt32LE(number, 4 * place));
  return found;
}

function hash64(...parts) {
  const hash = createHash("blake2b512");
  for (const part of parts) hash.update(part);
  return hash.digest();
}

/** H' of RFC 9106, section 3.3, for a block. */
function hashBlock(seed) {
  const parts = [];
  let hashed = hash64(little(1024), seed);
  for (let place = 0; place < 30; place++) {
    parts.push(hashed.subarray(0, 32));
    hashed = hash64(hashed);
  }
  return Buffer.concat([...parts, hashed]);
}

// Words of 64 bits are two of 32, the lower one first.

/** a += b + 2 lo(a) lo(b), then d = (d ^ a) turned right by `bits`, which is 32, 24, 16 or 63. */
function mixHalf(m, a, b, d, bits) {
  const x = m[a];
  const y = m[b];
  const x0 = x & 0xffff, x1 = x >>> 16, y0 = y & 0xffff, y1 = y >>> 16;
  const middle = x0 * y1 + x1 * y0 + Math.floor((x0 * y0) / 65536);
  const productLow = Math.imul(x, y) >>> 0;
  const productHigh = x1 * y1 + Math.floor(middle / 65536);
  const low = x + y + 2 * productLow;
  m[a] = low;
  m[a + 1] = m[a + 1] + m[b + 1] + 2 * productHigh + Math.floor(low / 4294967296);
  const dl = m[d] ^ m[a];
  const dh = m[d + 1] ^ m[a + 1];
  if (bits === 32) {
    m[d] = dh;
    m[d + 1] = dl;
  } else if (bits === 63) {
    m[d] = (dl << 1) | (dh >>> 31);
    m[d + 1] = (dh << 1) | (dl >>> 31);
  } else {
    m[d] = (dl >>> bits) | (dh << (32 - bits));
    m[d + 1] = (dh >>> bits) | (dl << (32 - bits));
  }
}

function mix(m, a, b, c, d) {
  mixHalf(m, a, b, d, 32);
  mixHalf(m, c, d, b, 24);
  mixHalf(m, a, b, d, 16);
  mixHalf(m, c, d, b, 63);
}

function permute(m, at) {
  for (const all of [COLUMNS, DIAGONALS])
    for (const [a, b, c, d] of all) mix(m, at[a], at[b], at[c], at[d]);
}

const ROWS = Array.from({ length: 8 }, (_, row) => Array.from({ length: 16 }, (_, word) => 2 * (16 * row + word)));
const STRIPES = Array.from({ length: 8 }, (_, stripe) =>
  Array.from({ length: 16 }, (_, word) => 2 * (16 * (word >> 1) + 2 * stripe + (word & 1))),
);

/** G of RFC 9106, section 3.5, into `target`. */
function combine(first, second, target) {
  const mixed = new Uint32Array(WORDS);
  for (let word = 0; word < WORDS; word++) mixed[word] = first[word] ^ second[word];
  const before = mixed.slice();
  for (const at of ROWS) permute(mixed, at);
  for (const at of STRIPES) permute(mixed, at);
  for (let word = 0; word < WORDS; word++) target[word] = mixed[word] ^ before[word];
}

function addressBlock(slice, counter) {
  const zero = new Uint32Array(WORDS);
  const input = new Uint32Array(WORDS);
  [0, 0, slice, NUM_BLOCKS, 1, TYPE, counter].forEach((word, place) => {
    input[2 * place] = word;
  });
  const found = new Uint32Array(WORDS);
  combine(zero, input, found);
  combine(zero, found.slice(), found);
  return found;
}

/** Which earlier block the pseudo-random number points at, of `area` blocks. */
function reference(random, area) {
  const square = (BigInt(random) * BigInt(random)) >> 32n;
  return area - 1 - Number((BigInt(area) * square) >> 32n);
}

/** The 32 bytes that Argon2id makes of a message and a salt. */
export function argon2id(message, salt) {
  const lengths = [little(message.length), message, little(salt.length), salt, little(0, 0)];
  const seed = hash64(little(1, TAG_SIZE, NUM_BLOCKS, 1, 0x13, TYPE), ...lengths);
  const memory = new Uint32Array(NUM_BLOCKS * WORDS);
  const block = (place) => memory.subarray(WORDS * place, WORDS * (place + 1));
  for (const place of [0, 1]) {
    const bytes = hashBlock(Buffer.concat([seed, little(place, 0)]));
    for (let word = 0; word < WORDS; word++) memory[WORDS * place + word] = bytes.readUInt32LE(4 * word);
  }
  let addresses = null;
  for (let place = 2; place < NUM_BLOCKS; place++) {
    const [slice, inside] = [Math.floor(place / SEGMENT), place % SEGMENT];
    let random = memory[WORDS * (place - 1)];
    if (slice < 2) {
      if (addresses === null || inside % PER_ADDRESSES === 0)
        addresses = addressBlock(slice, Math.floor(inside / PER_ADDRESSES) + 1);
      random = addresses[2 * (inside % PER_ADDRESSES)];
    }
    combine(block(place - 1), block(reference(random, place - 1)), block(place));
  }
  const last = Buffer.alloc(4 * WORDS);
  block(NUM_BLOCKS - 1).forEach((word, at) => last.writeUInt32LE(word, 4 * at));
  return blake2b(Buffer.concat([little(TAG_SIZE), last]), TAG_SIZE);
}
