/**
 * Verifies chain folders as FORMAT.md says: `node verify.mjs FOLDER...`. With `--lines` it reads folders from the standard
 * input, one in a line, and answers each with a line of JSON.
 */
import { lstatSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { Chain } from "./chain.mjs";
import { Wrong, require } from "./encoding.mjs";
import { sha256 } from "./names.mjs";
import { Database } from "./sqlite.mjs";

const APPLICATION = 0x6264666c;
const TABLES = 2;

function isBytes(...values) {
  return values.every((value) => Buffer.isBuffer(value));
}

/** What FORMAT.md, section 13, says of a folder: rows by name, and files by digest. */
function readFolder(folder) {
  const database = new Database(join(folder, "chain.sqlite"));
  require(database.applicationId === APPLICATION && database.userVersion === TABLES, "store", "not of a chain");
  const genesis = [...database.rows("genesis")];
  require(genesis.length === 1, "store", "genesis");
  const [data, checksum] = genesis[0].values;
  require(isBytes(data, checksum) && sha256(data).equals(checksum), "store", "genesis was changed");
  const checkpoint = [...database.rows("checkpoint")];
  require(checkpoint.length === 1 && typeof checkpoint[0].values[0] === "bigint", "store", "checkpoint");
  const proofs = new Map();
  for (const { values } of database.rows("proofs")) proofs.set(`${values[0]} ${values[1]}`, values[2]);
  return {
    genesis: data,
    blocks: [...database.rows("blocks")],
    checkpoint: checkpoint[0].values[0],
    proofOf: (height, client) => proofs.get(`${height} ${client}`) ?? null,
    readFile: (digest, size) => readBlob(folder, digest.toString("hex"), size),
  };
}

/** A regular file of at most the size that global models have; null where there is none. */
function readBlob(folder, name, size) {
  const path = join(folder, "blobs", name.slice(0, 2), name);
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (found === undefined) return null;
  require(found.isFile() && BigInt(found.size) <= size, "blob-digest", name);
  return readFileSync(path);
}

/** The chain in a folder at its tip, and how much of it was pruned; raises `Wrong` with the block that it was found in. */
export function verifyFolder(folder) {
  let height = 0;
  try {
    const stored = readFolder(folder);
    let most = 2n ** 31n;
    const chain = new Chain(stored.genesis, (digest) => stored.readFile(digest, most));
    most = chain.largestFile;
    for (const { rowid, values } of stored.blocks) {
      height += 1;
      require(rowid === BigInt(height), "store", `block ${height} is missing`);
      const [, data, certificate, checksum] = values;
      require(isBytes(data, certificate, checksum), "store");
      require(sha256(data, certificate).equals(checksum), "store", "its row was changed");
      const isPruned = BigInt(height) <= stored.checkpoint;
      const proofOf = isPruned ? (client) => stored.proofOf(height, client) : null;
      chain.add(data, certificate, proofOf, BigInt(height) === stored.checkpoint);
    }
    return { chain, checkpoint: Number(stored.checkpoint) };
  } catch (error) {
    if (error instanceof Wrong) error.block = height;
    throw error;
  }
}

/** A verdict as plain values; `error` is a mistake of this program. */
export function judge(folder) {
  try {
    const { chain, checkpoint } = verifyFolder(folder);
    const { height, numSignatures, genesis } = chain;
    const names = { chain: chain.id.toString("hex"), tip: chain.tip.toString("hex"), scheduler: genesis.scheduler.name };
    return { valid: true, height, checkpoint, signatures: numSignatures, ...names };
  } catch (error) {
    if (error instanceof Wrong) return { valid: false, block: error.block, rule: error.rule, why: error.message };
    return { error: String(error?.stack ?? error) };
  }
}

function say(folder, verdict) {
  if (verdict.error !== undefined) return `${folder}: this verifier failed: ${verdict.error}`;
  if (!verdict.valid)
    return `${folder}: wrong: ${verdict.block === 0 ? "genesis" : `block ${verdict.block}`}, rule ${verdict.why}`;
  const pruned = verdict.checkpoint > 0 ? `, models up to block ${verdict.checkpoint} by the word of a quorum` : "";
  const scheduler = `schedules are valid, not compared with those of ${JSON.stringify(verdict.scheduler)}`;
  return `${folder}: valid: ${verdict.height} blocks, ${verdict.signatures} signatures${pruned}; ${scheduler}
  chain ${verdict.chain}
  tip   ${verdict.tip}`;
}

async function main(given) {
  if (given[0] === "--lines") {
    for await (const line of createInterface({ input: process.stdin })) console.log(JSON.stringify(judge(line)));
    return 0;
  }
  if (given.length === 0) {
    console.error("node verify.mjs FOLDER... (the folder of a chain, or of a run that has one)");
    return 2;
  }
  let code = 0;
  for (const name of given) {
    const inside = join(name, "chain");
    const folder = lstatSync(join(inside, "chain.sqlite"), { throwIfNoEntry: false }) === undefined ? name : inside;
    const verdict = judge(folder);
    console.log(say(name, verdict));
    code = Math.max(code, verdict.valid ? 0 : 1);
  }
  return code;
}

if (process.argv[1] !== undefined && resolve(process.argv[1]) === fileURLToPath(import.meta.url))
  process.exitCode = await main(process.argv.slice(2));
