/**
 * Rows of an SQLite 3 file, read without SQLite: tables with and without rowids, overflow pages, and a write-ahead log as
 * far as it is committed [https://sqlite.org/fileformat2.html]. Nothing is written or locked. A file with a rollback
 * journal, one that is not UTF-8, and anything that points out of the file or in circles is refused.
 */
import { existsSync, readFileSync, statSync } from "node:fs";
import { require } from "./encoding.mjs";

const RULE = "store";
const MAGIC = "SQLite format 3\0";
const MOST_DEPTH = 24;

export class Database {
  constructor(path) {
    require(existsSync(path) && statSync(path).isFile(), RULE, "no chain.sqlite");
    require(!existsSync(`${path}-journal`) || statSync(`${path}-journal`).size === 0, RULE, "a rollback journal");
    this.file = readFileSync(path);
    require(this.file.length >= 512 && this.file.toString("latin1", 0, 16) === MAGIC, RULE, "no SQLite file");
    const stated = this.file.readUInt16BE(16);
    this.pageSize = stated === 1 ? 65536 : stated;
    const isPower = this.pageSize >= 512 && (this.pageSize & (this.pageSize - 1)) === 0;
    require(isPower && this.file.length % this.pageSize === 0, RULE, "pages");
    this.numPages = this.file.length / this.pageSize;
    this.logged = new Map();
    if (existsSync(`${path}-wal`)) this.readLog(readFileSync(`${path}-wal`));
    const first = this.page(1);
    this.usable = this.pageSize - first[20];
    require(this.usable >= 480 && first.readUInt32BE(56) === 1, RULE, "not UTF-8");
    this.userVersion = first.readUInt32BE(60);
    this.applicationId = first.readUInt32BE(68);
    this.roots = new Map();
    for (const { values } of this.walk(1, true)) if (values[0] === "table") this.roots.set(values[1], Number(values[3]));
  }

  /** The newest committed content of every page in a log. */
  readLog(log) {
    if (log.length < 32) return;
    const magic = log.readUInt32BE(0);
    if (magic !== 0x377f0682 && magic !== 0x377f0683) return;
    const isBig = magic === 0x377f0683;
    let sums = checksum(log.subarray(0, 24), [0, 0], isBig);
    if (sums[0] !== log.readUInt32BE(24) || sums[1] !== log.readUInt32BE(28)) return;
    require(log.readUInt32BE(8) === this.pageSize, RULE, "pages of the log");
    const open = new Map();
    const frame = 24 + this.pageSize;
    for (let at = 32; at + frame <= log.length; at += frame) {
      if (!log.subarray(at + 8, at + 16).equals(log.subarray(16, 24))) break; // of a former log
      const content = log.subarray(at + 24, at + frame);
      sums = checksum(content, checksum(log.subarray(at, at + 8), sums, isBig), isBig);
      if (sums[0] !== log.readUInt32BE(at + 16) || sums[1] !== log.readUInt32BE(at + 20)) break;
      open.set(log.readUInt32BE(at), content);
      const size = log.readUInt32BE(at + 4);
      if (size === 0) continue;
      for (const [number, page] of open) this.logged.set(number, page);
      open.clear();
      this.numPages = size;
    }
  }

  page(number) {
    require(number >= 1 && number <= this.numPages, RULE, `page ${number}`);
    const found = this.logged.get(number);
    if (found !== undefined) return found;
    require(number * this.pageSize <= this.file.length, RULE, `page ${number}`);
    return this.file.subarray((number - 1) * this.pageSize, number * this.pageSize);
  }

  /** The rows of a table in the order of its key, as lists of values; `rowid` for tables that have one. */
  *rows(table) {
    require(this.roots.has(table), RULE, `no table ${table}`);
    const root = this.roots.get(table);
    yield* this.walk(root, [0x05, 0x0d].includes(this.page(root)[root === 1 ? 100 : 0]));
  }

  *walk(number, hasRowids, depth = 0, seen = new Set()) {
    require(depth < MOST_DEPTH && !seen.has(number), RULE, "a tree in circles");
    seen.add(number);
    const page = this.page(number);
    const start = number === 1 ? 100 : 0;
    const kind = page[start];
    const isLeaf = kind === (hasRowids ? 0x0d : 0x0a);
    require(isLeaf || kind === (hasRowids ? 0x05 : 0x02), RULE, `page ${number} of kind ${kind}`);
    const count = page.readUInt16BE(start + 3);
    const pointers = start + (isLeaf ? 8 : 12);
    require(pointers + 2 * count <= this.usable, RULE, "cells");
    for (let cell = 0; cell < count; cell++) {
      let at = page.readUInt16BE(pointers + 2 * cell);
      require(at + 4 <= this.usable, RULE, "a cell");
      if (!isLeaf) {
        yield* this.walk(page.readUInt32BE(at), hasRowids, depth + 1, seen);
        at += 4;
      }
      if (isLeaf || !hasRowids) yield this.cell(page, at, hasRowids);
    }
    if (!isLeaf) yield* this.walk(page.readUInt32BE(start + 8), hasRowids, depth + 1, seen);
  }

  cell(page, start, hasRowids) {
    let [size, at] = varint(page, start);
    let rowid = null;
    if (hasRowids) [rowid, at] = varint(page, at);
    return { rowid, values: readRecord(this.payload(page, at, Number(size), hasRowids)) };
  }

  payload(page, at, size, hasRowids) {
    const most = hasRowids ? this.usable - 35 : Math.floor(((this.usable - 12) * 64) / 255) - 23;
    let local = size;
    if (size > most) {
      const least = Math.floor(((this.usable - 12) * 32) / 255) - 23;
      const fitting = least + ((size - least) % (this.usable - 4));
      local = fitting <= most ? fitting : least;
    }
    require(size <= this.numPages * this.pageSize && at + local <= this.usable, RULE, "a payload");
    const parts = [page.subarray(at, at + local)];
    let next = local < size ? page.readUInt32BE(at + local) : 0;
    for (let left = size - local; left > 0; left -= this.usable - 4) {
      const overflow = this.page(next);
      parts.push(overflow.subarray(4, 4 + Math.min(left, this.usable - 4)));
      next = overflow.readUInt32BE(0);
    }
    return Buffer.concat(parts);
  }
}

function checksum(data, [first, second], isBig) {
  let [one, two] = [first, second];
  for (let at = 0; at < data.length; at += 8) {
    one = (one + (isBig ? data.readUInt32BE(at) : data.readUInt32LE(at)) + two) >>> 0;
    two = (two + (isBig ? data.readUInt32BE(at + 4) : data.readUInt32LE(at + 4)) + one) >>> 0;
  }
  return [one, two];
}

/** A variable-length integer (BigInt, signed) and where it ends. */
function varint(data, start) {
  let found = 0n;
  for (let place = 0; place < 9; place++) {
    require(start + place < data.length, RULE, "cut off");
    const byte = data[start + place];
    if (place === 8) return [BigInt.asIntN(64, (found << 8n) | BigInt(byte)), start + 9];
    found = (found << 7n) | BigInt(byte & 0x7f);
    if (byte < 0x80) return [found, start + place + 1];
  }
  throw new Error("not reached");
}

function readRecord(data) {
  let [end, at] = varint(data, 0);
  let content = Number(end);
  require(content >= at && content <= data.length, RULE, "a record");
  const values = [];
  while (at < Number(end)) {
    let type;
    [type, at] = varint(data, at);
    const [value, size] = readValue(data, content, Number(type));
    values.push(value);
    content += size;
  }
  require(at === Number(end) && content === data.length, RULE, "a record");
  return values;
}

const INTEGER_SIZES = [0, 1, 2, 3, 4, 6, 8];

function readValue(data, at, type) {
  if (type === 0) return [null, 0];
  if (type === 8 || type === 9) return [BigInt(type - 8), 0];
  const size = type >= 12 ? (type - 12) >> 1 : INTEGER_SIZES[type];
  require(size !== undefined && size >= 0 && at + size <= data.length, RULE, "a value");
  const bytes = data.subarray(at, at + size);
  if (type < 12) return [BigInt.asIntN(8 * size, BigInt(`0x${bytes.toString("hex")}`)), size];
  return [type % 2 === 0 ? bytes : bytes.toString("utf8"), size];
}
