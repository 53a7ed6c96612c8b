/**
 * Canonical bytes: a strict reader of the MessagePack that stands on a chain (tests/vectors/FORMAT.md, sections 1 and
 * 10), and the small writer that statements need.
 *
 * Only the shortest encoding of a value is accepted, so that bytes and values are two names of one thing. Every record
 * and every array remembers where its bytes lie (`SPAN`): digests are computed over the very bytes that were received.
 */

/** Where the bytes of a decoded record or array lie: [begin, end). */
export const SPAN = Symbol("span");

const MAX_DEPTH = 16;
const MAX_RECORD_BYTES = 80 * 2 ** 20;
const MAX_TEXT_CHARACTERS = 200;
const MOST_INTEGER = 2n ** 63n - 1n;

/** Bytes that are not the canonical encoding of what was expected. */
export class BadEncoding extends Error {}

function refuse(what) {
  throw new BadEncoding(what);
}

// Values

class ByteReader {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.at = 0;
    this.text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  }

  take(size) {
    const begin = this.at;
    if (size > this.bytes.length - begin) refuse(`cut off at byte ${begin}: ${size} more bytes expected`);
    this.at += size;
    return begin;
  }

  /** A number of 1, 2, 4 or 8 bytes; a BigInt only where a double would lose digits. */
  readNumber(size, isSigned) {
    const at = this.take(size);
    if (size === 1) return isSigned ? this.view.getInt8(at) : this.view.getUint8(at);
    if (size === 2) return isSigned ? this.view.getInt16(at) : this.view.getUint16(at);
    if (size === 4) return isSigned ? this.view.getInt32(at) : this.view.getUint32(at);
    const big = isSigned ? this.view.getBigInt64(at) : this.view.getBigUint64(at);
    const number = Number(big);
    return Number.isSafeInteger(number) ? number : big;
  }

  readValue(depth) {
    if (depth > MAX_DEPTH) refuse(`nested deeper than ${MAX_DEPTH}`);
    const begin = this.at;
    const first = this.bytes[this.take(1)];
    if (first <= 0x7f) return first;
    if (first >= 0xe0) return first - 256;
    if (first === 0xc0) return null;
    if (first === 0xc2) return false;
    if (first === 0xc3) return true;
    if (first >= 0xcc && first <= 0xd3) return this.readInteger(first, begin);
    if (first >= 0x90 && first <= 0x9f) return this.readArray(first - 0x90, begin, depth);
    if (first >= 0xa0 && first <= 0xbf) return this.readText(first - 0xa0);
    switch (first) {
      case 0xc4:
        return this.readBytes(this.readNumber(1, false));
      case 0xc5:
        return this.readBytes(this.readLength(2, 0xff, begin));
      case 0xc6:
        return this.readBytes(this.readLength(4, 0xffff, begin));
      case 0xd9:
        return this.readText(this.readLength(1, 31, begin));
      case 0xda:
        return this.readText(this.readLength(2, 0xff, begin));
      case 0xdb:
        return this.readText(this.readLength(4, 0xffff, begin));
      case 0xdc:
        return this.readArray(this.readLength(2, 15, begin), begin, depth);
      case 0xdd:
        return this.readArray(this.readLength(4, 0xffff, begin), begin, depth);
      default:
        return refuse(`byte ${begin}: a value that begins with ${first.toString(16).padStart(2, "0")}`);
    }
  }

  readInteger(first, begin) {
    const place = (first - 0xcc) % 4;
    const value = this.readNumber(2 ** place, first >= 0xd0);
    const big = BigInt(value);
    const bits = BigInt(8 * 2 ** place);
    const shorter = place === 0 ? 0n : bits / 2n; // what the next shorter form holds
    const isShortest =
      first < 0xd0
        ? big > (place === 0 ? 127n : 2n ** shorter - 1n)
        : big < (place === 0 ? -32n : -(2n ** (shorter - 1n)));
    if (!isShortest) refuse(`byte ${begin}: the number ${big} in a longer form than it needs`);
    if (big > MOST_INTEGER || big < -MOST_INTEGER) refuse(`byte ${begin}: the number ${big} is too large`);
    return value;
  }

  readLength(size, most, begin) {
    const length = this.readNumber(size, false);
    if (length <= most) refuse(`byte ${begin}: the length ${length} in a longer form than it needs`);
    return length;
  }

  readBytes(length) {
    const at = this.take(length);
    return this.bytes.subarray(at, at + length);
  }

  readText(length) {
    const at = this.take(length);
    try {
      return this.text.decode(this.bytes.subarray(at, at + length));
    } catch {
      return refuse(`byte ${at}: not UTF-8`);
    }
  }

  readArray(length, begin, depth) {
    if (length > this.bytes.length - this.at) refuse(`byte ${begin}: ${length} elements do not fit`);
    const items = new Array(length);
    for (let index = 0; index < length; index += 1) items[index] = this.readValue(depth + 1);
    items[SPAN] = [begin, this.at];
    return items;
  }
}

/** The value that these bytes are the only encoding of; raises `BadEncoding`. */
export function decodeValue(bytes) {
  if (bytes.length > MAX_RECORD_BYTES) refuse(`${bytes.length} bytes, at most ${MAX_RECORD_BYTES} expected`);
  const reader = new ByteReader(bytes);
  const value = reader.readValue(0);
  if (reader.at !== bytes.length) refuse(`${bytes.length - reader.at} bytes after the end`);
  return value;
}

/** The canonical bytes of null, booleans, whole numbers, texts, bytes and arrays of these. */
export function encodeValue(value) {
  const parts = [];
  writeValue(value, parts);
  return joinBytes(parts);
}

/** These bytes one after the other. */
export function joinBytes(parts) {
  const joined = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    joined.set(part, at);
    at += part.length;
  }
  return joined;
}

function writeValue(value, parts) {
  if (value === null) parts.push([0xc0]);
  else if (value === false) parts.push([0xc2]);
  else if (value === true) parts.push([0xc3]);
  else if (typeof value === "number" || typeof value === "bigint") writeInteger(BigInt(value), parts);
  else if (typeof value === "string") {
    const text = new TextEncoder().encode(value);
    writeHead(text.length, 0xa0, 32, { 1: 0xd9, 2: 0xda, 4: 0xdb }, parts);
    parts.push(text);
  } else if (value instanceof Uint8Array) {
    writeHead(value.length, 0, 0, { 1: 0xc4, 2: 0xc5, 4: 0xc6 }, parts);
    parts.push(value);
  } else if (Array.isArray(value)) {
    writeHead(value.length, 0x90, 16, { 2: 0xdc, 4: 0xdd }, parts);
    for (const item of value) writeValue(item, parts);
  } else refuse(`a ${typeof value}, which has no encoding`);
}

function writeInteger(value, parts) {
  if (value > MOST_INTEGER || value < -MOST_INTEGER) refuse(`the number ${value} is too large`);
  if (value >= -32n && value <= 127n) {
    parts.push([Number(BigInt.asUintN(8, value))]);
    return;
  }
  for (const [place, size] of [1, 2, 4, 8].entries()) {
    const bits = BigInt(8 * size);
    if (value >= 0n ? value < 2n ** bits : value >= -(2n ** (bits - 1n))) {
      parts.push([(value >= 0n ? 0xcc : 0xd0) + place, ...bigEndian(BigInt.asUintN(Number(bits), value), size)]);
      return;
    }
  }
}

function writeHead(length, short, below, marks, parts) {
  if (length < below) {
    parts.push([short + length]);
    return;
  }
  const size = [1, 2, 4].find((one) => one in marks && length < 256 ** one);
  parts.push([marks[size], ...bigEndian(BigInt(length), size)]);
}

function bigEndian(value, size) {
  return Array.from({ length: size }, (_, place) => Number((value >> BigInt(8 * (size - 1 - place))) & 0xffn));
}

// Records: fields in the order of the encoding. A type is the name of a record, or: d digest, s signature, n nonce,
// w whole number, p positive, m member, a attempt, e energy budget, u delta, T time, o objective, t text, B boolean, D digest or none,
// x? x or nil, [x] array, 'a|b' one of these texts.

const RECORD_FIELDS = {
  Genesis:
    "format:w name:t time_ms:T scenario:d members:[Member] physics:Physics scheduler:SchedulerName law:Law model:ModelForm " +
    "schedule:Schedule access_points:[AccessPoint] privacy:Privacy?",
  AccessPoint: "name:t certificate:d",
  Privacy: "noise_micro:p clip_micro:p delta_atto:u accountant:'rdp|prv' batch:p steps:p unit:'updates|epochs'",
  Member: "public_key:d limits:Limits conditions:Conditions",
  Limits:
    "samples:w rate_nano:w cycles:w capacitance:p power_uw:w power_max_uw:w model_bits:p cpu_max_hz:w? " +
    "mining_max_hz:w? initial_cpu_hz:p initial_mining_hz:p",
  Physics: "min_clients:p tradeoff_nano:p work_cycles:p bandwidth_hz:p noise:p overhead_ns:w",
  SchedulerName: "name:t version:t parameters:[Parameter] seed:w",
  Parameter: "name:t value:t",
  Law:
    "quorum:'majority|bft' work:'sha256|argon2id' difficulty:p target_ms:w aggregation:t faulty:w min_updates:p max_exchange_ns:p",
  ModelForm: "initial:d size:p tensors:[Tensor]",
  Tensor: "name:t shape:[w]",
  Block: "header:Header nonce:n signature:s body:Body",
  Header: "format:w chain:d height:p attempt:a parent:d proposer:m body:d difficulty:p time_ms:T",
  Body:
    "parent_certificate:[SignedVote] schedule:Schedule is_empty:B model:d queue_nano:[w] modelled:Modelled " +
    "reports:[SignedReport] next_schedule:Schedule entries:[Entry] updates:[SignedUpdate]",
  Schedule: "round:p selected:[m] cpu_hz:[w] power_uw:[w] mining_hz:[w] objective_nano:o reason:t",
  Modelled: "exchange_ns:w mining_ns:w delay_ns:w energy_pj:[w]",
  Place: "chain:d height:w parent:d",
  Conditions: "gain_atto:w energy_budget_pj:e is_reachable:B",
  Receipt: "round:p energy_pj:w training_ns:w upload_ns:w mining_ns:w",
  Report: "client:m round:p conditions:Conditions receipt:Receipt?",
  SignedReport: "report:Report signature:s",
  ModelUpdate: "client:m samples:w size:w model:D epsilon_micro:w",
  SignedUpdate: "update:ModelUpdate signature:s",
  Vote: "kind:'prevote|precommit' attempt:a block:d voter:m updates:[m] reports:[m] mining_ms:w",
  SignedVote: "vote:Vote signature:s",
  SignedHeader: "header:Header nonce:n signature:s",
  TwoVotes: "kind:'two-votes' place:Place first:SignedVote second:SignedVote",
  TwoBlocks: "kind:'two-blocks' first:SignedHeader second:SignedHeader",
  TwoUpdates: "kind:'two-updates' place:Place first:SignedUpdate second:SignedUpdate",
  FalseWork: "kind:'false-work' block:SignedHeader",
  MembershipChange: "kind:'membership' change:Change expires:p assents:[Assent]",
  Admission: "kind:'admission' number:m member:Member",
  Removal: "kind:'removal' number:m",
  Assent: "member:m signature:s",
};

/** Records told apart by their first field. */
const RECORD_CHOICES = {
  Entry: {
    "two-votes": "TwoVotes",
    "two-blocks": "TwoBlocks",
    "two-updates": "TwoUpdates",
    "false-work": "FalseWork",
    membership: "MembershipChange",
  },
  Change: { admission: "Admission", removal: "Removal" },
};

const NUMBER_RANGES = {
  w: [0n, MOST_INTEGER],
  p: [1n, MOST_INTEGER],
  m: [0n, 4095n],
  a: [1n, 10_000n],
  e: [0n, 10n ** 18n],
  u: [1n, 10n ** 18n - 1n],
  o: [-MOST_INTEGER, MOST_INTEGER],
  T: [1n, 253_402_300_799_999n],
};
const BYTE_LENGTHS = { d: [32], s: [64], n: [8], D: [0, 32] };
const ARRAY_LIMITS = { parameters: 64, shape: 16 };
const MAX_ARRAY_ITEMS = 4096;

/** @type {Map<string, [string, string][]>} */
const PARSED_FIELDS = new Map(
  Object.entries(RECORD_FIELDS).map(([kind, text]) => [
    kind,
    text.split(" ").map((field) => [field.slice(0, field.indexOf(":")), field.slice(field.indexOf(":") + 1)]),
  ]),
);

/**
 * The record of that kind ("Block", "Genesis", "[SignedVote]") in bytes from anywhere; raises `BadEncoding` unless
 * they are its canonical encoding.
 */
export function decodeRecord(bytes, kind) {
  return shapeValue(decodeValue(bytes), kind, kind);
}

function shapeValue(value, type, where) {
  if (type.endsWith("?")) return value === null ? null : shapeValue(value, type.slice(0, -1), where);
  if (type.startsWith("[")) {
    const limit = ARRAY_LIMITS[where.slice(where.lastIndexOf(".") + 1)] ?? MAX_ARRAY_ITEMS;
    if (!Array.isArray(value) || value.length > limit) refuse(`${where}: an array of at most ${limit} expected`);
    const items = value.map((item) => shapeValue(item, type.slice(1, -1), where));
    items[SPAN] = value[SPAN];
    return items;
  }
  if (type.startsWith("'")) {
    if (!type.slice(1, -1).split("|").includes(value)) refuse(`${where}: one of ${type} expected`);
    return value;
  }
  if (type in NUMBER_RANGES) {
    const [least, most] = NUMBER_RANGES[type];
    if (typeof value !== "number" && typeof value !== "bigint") refuse(`${where}: a whole number expected`);
    if (value < least || value > most) refuse(`${where}: a number from ${least} to ${most} expected, ${value} found`);
    return value;
  }
  if (type in BYTE_LENGTHS) {
    if (!(value instanceof Uint8Array) || !BYTE_LENGTHS[type].includes(value.length))
      refuse(`${where}: ${BYTE_LENGTHS[type].join(" or ")} bytes expected`);
    return value;
  }
  if (type === "B") return typeof value === "boolean" ? value : refuse(`${where}: true or false expected`);
  if (type === "t") {
    if (typeof value !== "string" || [...value].length > MAX_TEXT_CHARACTERS)
      refuse(`${where}: a text of at most ${MAX_TEXT_CHARACTERS} characters expected`);
    return value;
  }
  return shapeRecord(value, type, where);
}

function shapeRecord(value, type, where) {
  if (!Array.isArray(value)) refuse(`${where}: an array expected`);
  const choices = RECORD_CHOICES[type];
  const kind = choices === undefined ? type : Object.hasOwn(choices, value[0]) ? choices[value[0]] : "";
  const fields = PARSED_FIELDS.get(kind);
  if (fields === undefined) refuse(`${where}: one of ${Object.keys(choices ?? {}).join(", ")} expected`);
  if (value.length !== fields.length) refuse(`${where}: ${fields.length} fields expected, ${value.length} found`);
  const record = {};
  fields.forEach(([name, fieldType], index) => {
    record[name] = shapeValue(value[index], fieldType, `${where}.${name}`);
  });
  record[SPAN] = value[SPAN];
  return record;
}
