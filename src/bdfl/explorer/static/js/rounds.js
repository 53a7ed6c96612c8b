/* A run's rounds as columns: the whole run in at most 2,000 rows, single rounds in pieces, windows for zoomed charts. */

import { getJson, hasDocument, isExported } from "./data.js";

const CHUNK = 500; // rounds asked for at once
const MOST_CHUNKS = 24; // kept; the rest is asked for again
const MOST_ROWS = 2000;
const COLUMNS = [
  "round", "time_s", "delay_s", "delay_min_s", "delay_max_s", "training_s", "upload_s", "mining_s", "rest_s", "accuracy",
  "loss", "num_updates", "num_selected", "proposer", "attempt", "is_empty", "flags", "digest", "mean_queue", "objective",
];
const CLIENT_COLUMNS = ["energy_share", "queue", "count", "state"];

/** The bits of a row's `flags`. */
export const FLAG = { evidence: 1, membership: 2, infeasible: 4, problem: 8 };

/** Rows `from` (included) to `to` (excluded) of a rounds, as a rounds. */
export function sliceRounds(rounds, from, to) {
  const part = { ...rounds, clients: {} };
  for (const name of COLUMNS) part[name] = rounds[name] ? rounds[name].slice(from, to) : null;
  for (const name of CLIENT_COLUMNS) {
    const column = rounds.clients ? rounds.clients[name] : null;
    part.clients[name] = column ? column.slice(from, to) : null;
  }
  return part;
}

/** The number of rows whose round is at most `round`. */
export function countRowsUntil(rounds, round) {
  let low = 0;
  let high = rounds.round.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rounds.round[middle] <= round) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** One row as an object; `accuracyBefore` is the newest one known, for blocks whose model nobody evaluated. */
function rowOf(rounds, index) {
  const row = { accuracyBefore: null };
  for (let at = index; rounds.accuracy && at >= 0 && at > index - 100 && row.accuracyBefore === null; at -= 1) row.accuracyBefore = rounds.accuracy[at] ?? null;
  for (const name of COLUMNS) row[name] = rounds[name] ? rounds[name][index] : null;
  for (const name of CLIENT_COLUMNS) row[name] = rounds.clients && rounds.clients[name] ? rounds.clients[name][index] : null;
  return row;
}

function emptyRounds() {
  const rounds = { first: 1, last: 0, num_rounds: 0, bucket: 1, is_measured: false, clients: {} };
  for (const name of COLUMNS) rounds[name] = [];
  for (const name of CLIENT_COLUMNS) rounds.clients[name] = [];
  return rounds;
}

export class RoundStore {
  /** @param {number} run */
  constructor(run) {
    this.run = run;
    this.whole = emptyRounds();
    this.rows = new Map(); // height → row of the whole run, made when asked for
    this.chunks = new Map(); // number of the piece → rounds, or a promise of one
    this.wanted = new Map(); // number of a piece → when it was last looked for
    this.wantTimer = 0;
    this.listeners = new Set();
    this.refreshTimer = 0;
    this.loading = null;
    this.isLoaded = false;
  }

  /** Calls `listener` whenever rows arrive; returns how to stop that. */
  onRows(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  tell() {
    for (const listener of [...this.listeners]) listener();
  }

  /** Asks for the whole run once; later calls wait for the same answer. */
  load() {
    if (!this.loading) {
      this.loading = getJson(`/rounds.json?run=${this.run}`).then(
        (rounds) => {
          this.takeWhole(rounds);
          return rounds;
        },
        (error) => {
          this.loading = null;
          throw error;
        },
      );
    }
    return this.loading;
  }

  takeWhole(rounds) {
    // Blocks that came by event while the document was on its way are newer than it.
    const old = this.whole;
    this.whole = rounds.round && rounds.round.length ? rounds : emptyRounds();
    this.rows.clear();
    this.isLoaded = true;
    if (this.whole.bucket === 1) {
      for (let index = countRowsUntil(old, this.whole.last); old.bucket === 1 && index < old.round.length; index += 1) {
        this.pushRow(sliceRounds(old, index, index + 1));
      }
    }
    this.tell();
  }

  pushRow(one) {
    for (const name of COLUMNS) {
      if (one[name] && this.whole[name]) this.whole[name].push(one[name][0]);
      else if (this.whole[name]) this.whole[name].push(null);
    }
    for (const name of CLIENT_COLUMNS) {
      const column = this.whole.clients ? this.whole.clients[name] : null;
      if (column) column.push(one.clients && one.clients[name] ? one.clients[name][0] : null);
    }
    this.whole.last = one.round[0];
    this.whole.num_rounds = this.whole.last - this.whole.first + 1;
    this.whole.is_measured = one.is_measured;
  }

  /** A block arrived: `one` is a rounds of one row. */
  append(one) {
    if (!one || !one.round || !one.round.length) return;
    const round = one.round[0];
    this.chunks.delete(Math.floor((round - 1) / CHUNK));
    const last = this.whole.last;
    if (this.whole.bucket === 1 && round === last + 1 && this.whole.round.length < 2 * MOST_ROWS) this.pushRow(one);
    else if (round > last || this.whole.bucket > 1) this.refreshSoon();
    this.tell();
  }

  refreshSoon() {
    if (this.refreshTimer) return;
    this.refreshTimer = window.setTimeout(async () => {
      this.refreshTimer = 0;
      try {
        this.takeWhole(await getJson(`/rounds.json?run=${this.run}`));
      } catch {
        // the connection's own state says so
      }
    }, 700);
  }

  /** Asks for everything anew (after a lost connection). */
  refresh() {
    this.chunks.clear();
    this.refreshSoon();
  }

  /**
   * The row of one round, or null while it is on its way (listeners are told when it is there).
   * A row of several rounds (`bucket` > 1) never stands for one.
   */
  row(height) {
    const whole = this.whole;
    if (height < 1) return null;
    if (whole.bucket === 1) {
      if (height < whole.first || height > whole.last) return null;
      let row = this.rows.get(height);
      if (!row) {
        row = this.searchRow(whole, height);
        if (row) this.rows.set(height, row);
      }
      return row;
    }
    if (height > whole.last) return null;
    const number = Math.floor((height - 1) / CHUNK);
    const chunk = this.chunks.get(number);
    if (chunk && chunk.round) {
      this.chunks.delete(number); // the newest used stands last
      this.chunks.set(number, chunk);
      return this.searchRow(chunk, height);
    }
    if (!chunk) this.wantChunk(number);
    return null;
  }

  searchRow(rounds, height) {
    const index = countRowsUntil(rounds, height) - 1;
    return index >= 0 && rounds.round[index] === height ? rowOf(rounds, index) : null;
  }

  /** Asks for a piece once nobody flies past it any more: a fast scroll wants hundreds for a moment each. */
  wantChunk(number) {
    this.wanted.set(number, performance.now());
    if (this.wantTimer) return;
    this.wantTimer = window.setTimeout(() => {
      this.wantTimer = 0;
      const newest_ms = Math.max(...this.wanted.values());
      const numbers = [...this.wanted].filter(([, asked_ms]) => asked_ms > newest_ms - 25).map(([wanted]) => wanted);
      this.wanted.clear();
      for (const wanted of numbers) if (!this.chunks.has(wanted)) this.fetchChunk(wanted);
    }, 70);
  }

  async fetchChunk(number) {
    const first = number * CHUNK + 1;
    const last = Math.min(first + CHUNK - 1, this.whole.last);
    const path = `/rounds.json?run=${this.run}&first=${first}&last=${last}&points=${CHUNK}`;
    if (!hasDocument(path)) return;
    const promise = getJson(path);
    this.chunks.set(number, promise);
    try {
      const rounds = await promise;
      if (this.chunks.get(number) !== promise) return;
      this.chunks.set(number, rounds);
      for (const old of this.chunks.keys()) {
        if (this.chunks.size <= MOST_CHUNKS) break;
        this.chunks.delete(old);
      }
      this.tell();
    } catch {
      if (this.chunks.get(number) === promise) this.chunks.delete(number);
    }
  }

  /** Rows for charts over the rounds `first` to `last`: finer than the whole run's where that helps. */
  async window(first, last, signal) {
    const path = `/rounds.json?run=${this.run}&first=${first}&last=${last}&points=${MOST_ROWS}`;
    if (this.whole.bucket === 1 || isExported()) return this.whole;
    return getJson(path, signal);
  }

  /** The row at or before a height, exact if it is there, else of the rounds around it. */
  nearestRow(height) {
    const exact = this.row(height);
    if (exact) return exact;
    const index = countRowsUntil(this.whole, height);
    const at = this.whole.round[index] === undefined ? index - 1 : index;
    return at >= 0 && this.whole.round.length ? rowOf(this.whole, at) : null;
  }
}
