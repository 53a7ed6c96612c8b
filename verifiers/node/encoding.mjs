/** Values and records as bytes: FORMAT.md, sections 1 and 10. */

/** Something that FORMAT.md does not allow: the rule's name, and what was found. */
export class Wrong extends Error {
  constructor(rule, why = "") {
    super(why === "" ? rule : `${rule}: ${why}`);
    this.rule = rule;
  }
}

export function require(isRight, rule, why = "") {
  if (!isRight) throw new Wrong(rule, why);
}

export function isAscending(numbers) {
  return numbers.every((number, place) => place === 0 || numbers[place - 1] < number);
}

const MOST_DEPTH = 32;
const MOST_BYTES = 67_108_864;
const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

// Section 1: values. Integers are BigInt, bytes are Buffer, text is string; arrays know where they stand.

class Reader {
  constructor(data) {
    this.data = data;
    this.at = 0;
  }

  take(size) {
    require(this.at + size <= this.data.length, "encoding", "cut off");
    const found = this.data.subarray(this.at, this.at + size);
    this.at += size;
    return found;
  }

  number(size) {
    return this.take(size).readUIntBE(0, size);
  }

  value(depth = 0) {
    require(depth <= MOST_DEPTH, "encoding", "arrays in arrays in arrays");
    const start = this.at;
    const first = this.number(1);
    if (first <= 0x7f) return BigInt(first);
    if (first >= 0xe0) return BigInt(first - 256);
    if (first >= 0x90 && first <= 0x9f) return this.array(first - 0x90, start, depth);
    if (first >= 0xa0 && first <= 0xbf) return this.text(first - 0xa0);
    if (first === 0xc0) return null;
    if (first === 0xc2 || first === 0xc3) return first === 0xc3;
    if (first >= 0xc4 && first <= 0xc6) return this.take(this.number(1 << (first - 0xc4)));
    if (first >= 0xcc && first <= 0xcf) return this.integer(1 << (first - 0xcc), false);
    if (first >= 0xd0 && first <= 0xd3) return this.integer(1 << (first - 0xd0), true);
    if (first >= 0xd9 && first <= 0xdb) return this.text(this.number(1 << (first - 0xd9)));
    if (first === 0xdc || first === 0xdd) return this.array(this.number(first === 0xdc ? 2 : 4), start, depth);
    throw new Wrong("encoding", `a value that begins with ${first.toString(16)}`);
  }

  integer(size, isSigned) {
    let found = 0n;
    for (const byte of this.take(size)) found = (found << 8n) | BigInt(byte);
    return isSigned ? BigInt.asIntN(8 * size, found) : found;
  }

  text(size) {
    try {
      return UTF8.decode(this.take(size));
    } catch (error) {
      if (error instanceof Wrong) throw error;
      throw new Wrong("encoding", "text that is not UTF-8");
    }
  }

  array(count, start, depth) {
    require(count <= this.data.length - this.at, "encoding", "cut off");
    const found = [];
    for (let place = 0; place < count; place++) found.push(this.value(depth + 1));
    found.bytes = this.data.subarray(start, this.at);
    return found;
  }
}

function head(length, short, below, marks) {
  if (length < below) return Buffer.from([short + length]);
  const [mark, size] = marks.find(([, bytes]) => length < 256 ** bytes);
  const found = Buffer.alloc(1 + size);
  found[0] = mark;
  found.writeUIntBE(length, 1, size);
  return found;
}

function writeInteger(number) {
  if (number >= -32n && number <= 127n) return Buffer.from([Number(BigInt.asUintN(8, number))]);
  const [mark, isSigned] = number >= 0n ? [0xcc, 0n] : [0xd0, 1n];
  for (let place = 0; place < 4; place++) {
    const bits = BigInt(8 << place);
    if (number < 2n ** (bits - isSigned) && number >= -(2n ** (bits - 1n))) {
      const digits = BigInt.asUintN(Number(bits), number).toString(16).padStart(2 << place, "0");
      return Buffer.concat([Buffer.from([mark + place]), Buffer.from(digits, "hex")]);
    }
  }
  throw new Wrong("encoding", "an integer beyond 64 bits");
}

/** The shortest encoding of a value, the only valid one. */
export function write(value) {
  if (value === null) return Buffer.from([0xc0]);
  if (typeof value === "boolean") return Buffer.from([value ? 0xc3 : 0xc2]);
  if (typeof value === "bigint" || typeof value === "number") return writeInteger(BigInt(value));
  if (typeof value === "string") {
    const text = Buffer.from(value, "utf8");
    return Buffer.concat([head(text.length, 0xa0, 32, [[0xd9, 1], [0xda, 2], [0xdb, 4]]), text]);
  }
  if (Array.isArray(value)) {
    const items = value.map(write);
    return Buffer.concat([head(value.length, 0x90, 16, [[0xdc, 2], [0xdd, 4]]), ...items]);
  }
  return Buffer.concat([head(value.length, 0, 0, [[0xc4, 1], [0xc5, 2], [0xc6, 4]]), value]);
}

// Section 10: records. A type is the name of a record, or one of these; x? is x or nil, [x n] an array of at most n.

const MOST = 2n ** 63n - 1n;
const INTEGERS = {
  whole: [0n, MOST],
  positive: [1n, MOST],
  member: [0n, 4095n],
  attempt: [1n, 10_000n],
  budget: [0n, 10n ** 18n],
  delta: [1n, 10n ** 18n - 1n],
  objective: [-MOST, MOST],
  time: [1n, 253_402_300_799_999n],
};
const SMALL = new Set(["member", "attempt", "time"]); // kept as numbers: they count, or index lists
const SIZES = { digest: [32], signature: [64], nonce: [8], model: [0, 32] };

const RECORDS = {
  Genesis: `format:whole name:text time_ms:time scenario:digest members:[Member 4096] physics:Physics
    scheduler:SchedulerName law:Law model:ModelForm schedule:Schedule access_points:[AccessPoint 4096] privacy:Privacy?`,
  Member: "public_key:digest limits:Limits conditions:Conditions",
  Limits: `samples:whole rate_nano:whole cycles:whole capacitance:positive power_uw:whole power_max_uw:whole
    model_bits:positive cpu_max_hz:whole? mining_max_hz:whole? initial_cpu_hz:positive initial_mining_hz:positive`,
  Physics: `min_clients:positive tradeoff_nano:positive work_cycles:positive bandwidth_hz:positive noise:positive
    overhead_ns:whole`,
  SchedulerName: "name:text version:text parameters:[Parameter 64] seed:whole",
  Parameter: "name:text value:text",
  Law: `quorum:'majority'bft' work:'sha256'argon2id' difficulty:positive target_ms:whole aggregation:text faulty:whole
    min_updates:positive max_exchange_ns:positive`,
  ModelForm: "initial:digest size:positive tensors:[Tensor 4096]",
  Tensor: "name:text shape:[whole 16]",
  AccessPoint: "name:text certificate:digest",
  Privacy: `noise_micro:positive clip_micro:positive delta_atto:delta accountant:'rdp'prv' batch:positive steps:positive
    unit:'updates'epochs'`,
  Block: "header:Header nonce:nonce signature:signature body:Body",
  Header: `format:whole chain:digest height:positive attempt:attempt parent:digest proposer:member body:digest
    difficulty:positive time_ms:time`,
  Body: `parent_certificate:[SignedVote 4096] schedule:Schedule is_empty:boolean model:digest queue_nano:[whole 4096]
    modelled:Modelled reports:[SignedReport 4096] next_schedule:Schedule entries:[Entry 4096] updates:[SignedUpdate 4096]`,
  Schedule: `round:positive selected:[member 4096] cpu_hz:[whole 4096] power_uw:[whole 4096] mining_hz:[whole 4096]
    objective_nano:objective reason:text`,
  Modelled: "exchange_ns:whole mining_ns:whole delay_ns:whole energy_pj:[whole 4096]",
  Place: "chain:digest height:whole parent:digest",
  Conditions: "gain_atto:whole energy_budget_pj:budget is_reachable:boolean",
  Receipt: "round:positive energy_pj:whole training_ns:whole upload_ns:whole mining_ns:whole",
  Report: "client:member round:positive conditions:Conditions receipt:Receipt?",
  SignedReport: "report:Report signature:signature",
  ModelUpdate: "client:member samples:whole size:whole model:model epsilon_micro:whole",
  SignedUpdate: "update:ModelUpdate signature:signature",
  Vote: `kind:'prevote'precommit' attempt:attempt block:digest voter:member updates:[member 4096] reports:[member 4096]
    mining_ms:whole`,
  SignedVote: "vote:Vote signature:signature",
  SignedHeader: "header:Header nonce:nonce signature:signature",
  TwoVotes: "kind:'two-votes' place:Place first:SignedVote second:SignedVote",
  TwoBlocks: "kind:'two-blocks' first:SignedHeader second:SignedHeader",
  TwoUpdates: "kind:'two-updates' place:Place first:SignedUpdate second:SignedUpdate",
  FalseWork: "kind:'false-work' block:SignedHeader",
  MembershipChange: "kind:'membership' change:Change expires:positive assents:[Assent 4096]",
  Admission: "kind:'admission' number:member member:Member",
  Removal: "kind:'removal' number:member",
  Assent: "member:member signature:signature",
  MerkleProof: "index:whole count:whole siblings:[digest 32]",
  StoredVotes: "votes:[SignedVote 4096]",
};
const ONE_OF = {
  Entry: ["TwoVotes", "TwoBlocks", "TwoUpdates", "FalseWork", "MembershipChange"],
  Change: ["Admission", "Removal"],
};

const FIELDS = Object.fromEntries(
  Object.entries(RECORDS).map(([kind, text]) => [
    kind,
    [...text.matchAll(/(\w+):(\[[^\]]*\]|\S+)/g)].map(([, name, form]) => [name, form]),
  ]),
);
const TAGS = Object.fromEntries(
  Object.entries(ONE_OF).map(([kind, all]) => [kind, new Map(all.map((one) => [FIELDS[one][0][1].split("'")[1], one]))]),
);

function shape(value, form, name) {
  if (form.endsWith("?")) return value === null ? null : shape(value, form.slice(0, -1), name);
  if (form.startsWith("[")) {
    const [inner, most] = form.slice(1, -1).split(" ");
    require(Array.isArray(value) && value.length <= Number(most), "encoding", `${name}: no such array`);
    const found = value.map((item) => shape(item, inner, name));
    found.bytes = value.bytes;
    return found;
  }
  if (form.startsWith("'")) {
    require(typeof value === "string" && form.split("'").slice(1, -1).includes(value), "encoding", name);
    return value;
  }
  if (form in INTEGERS) {
    const [low, high] = INTEGERS[form];
    require(typeof value === "bigint" && value >= low && value <= high, "encoding", `${name}: ${value}`);
    return SMALL.has(form) ? Number(value) : value;
  }
  if (form in SIZES) {
    require(Buffer.isBuffer(value) && SIZES[form].includes(value.length), "encoding", name);
    return value;
  }
  if (form === "text") {
    require(typeof value === "string" && (value.length <= 200 || [...value].length <= 200), "encoding", name);
    return value;
  }
  if (form === "boolean") {
    require(typeof value === "boolean", "encoding", name);
    return value;
  }
  return shapeRecord(value, form, name);
}

function shapeRecord(value, kind, name) {
  require(Array.isArray(value), "encoding", `${name}: no ${kind}`);
  const exact = kind in TAGS ? TAGS[kind].get(value[0]) : kind;
  require(exact !== undefined, "encoding", `${name}: no ${kind}`);
  const fields = FIELDS[exact];
  require(fields.length === value.length, "encoding", `${name}: ${value.length} fields, ${exact} has ${fields.length}`);
  const found = { bytes: value.bytes };
  fields.forEach(([field, form], place) => {
    found[field] = shape(value[place], form, field);
  });
  return found;
}

/** The record that these bytes are the only encoding of; `bytes` of each record are those of its own. */
export function decode(data, kind) {
  require(data.length <= MOST_BYTES, "encoding", `${data.length} bytes`);
  const reader = new Reader(data);
  const value = reader.value();
  require(reader.at === data.length, "encoding", "bytes after the end");
  require(write(value).equals(data), "encoding", "not the shortest encoding");
  return shapeRecord(value, kind, kind);
}
