/* The round clock: a ring of the round's phases, and which of them is under way. */

import { element, replaceContent, setText, shape } from "./dom.js";
import { isKnown, sayCount, saySeconds } from "./format.js";

/** The phases of a round in their order. */
export const PHASES = ["schedule", "train", "upload", "verify", "mine", "vote"];
const PHASE_COLOURS = { schedule: "--schedule", train: "--training", upload: "--upload", verify: "--verify", mine: "--mining", vote: "--vote" };
const PHASE_WORDS = { schedule: "scheduling", train: "training", upload: "uploading", verify: "verifying", mine: "mining", vote: "voting" };
const LEAST_SHARE = 0.035; // of the ring, so that every phase can be seen
const RADIUS = 78;

/**
 * The round on show: the one under way (playing, paused inside it, or live), else the newest finished one.
 * @returns {{round: number, isUnderWay: boolean, phase: string|null, progress: number, isLive: boolean}}
 */
export function roundNow(context) {
  const { position, tip, replay } = context;
  const status = context.status;
  if (!context.isReplay && !(status && status.phase === "done")) {
    return { round: tip + 1, isUnderWay: true, phase: status ? livePhase(status) : null, progress: 0, isLive: true };
  }
  const isInside = position < tip && (replay.isPlaying || replay.progress > 0 || position === 0);
  if (!isInside) return { round: position, isUnderWay: false, phase: null, progress: 1, isLive: false };
  const row = context.rounds.row(position + 1);
  const shares = phaseShares(row);
  let left = replay.progress;
  let index = 0;
  while (index < PHASES.length - 1 && left >= shares[index]) {
    left -= shares[index];
    index += 1;
  }
  return { round: position + 1, isUnderWay: true, phase: PHASES[index], progress: replay.progress, inPhase: Math.min(1, left / shares[index]), isLive: false };
}

function livePhase(status) {
  if (status.phase === "mining") return "mine";
  if (status.phase === "voting") return "vote";
  if (status.phase === "done") return "schedule";
  if (status.phase === "collecting") return status.nodes.some((node) => node.is_training) ? "train" : "upload";
  return null;
}

/** Seconds of each phase; null where none are recorded: only training, upload and mining are, the others share the rest. */
function phaseSeconds(row) {
  if (!row) return PHASES.map(() => null);
  return [null, row.training_s, row.upload_s, null, row.mining_s, null];
}

/** Share of the ring per phase, summing to one. */
export function phaseShares(row) {
  const rest_s = row && row.rest_s > 0 ? row.rest_s / 3 : 0;
  const seconds = phaseSeconds(row).map((value) => (isKnown(value) ? Math.max(0, value) : rest_s));
  const total_s = seconds.reduce((sum, value) => sum + value, 0);
  if (!(total_s > 0)) return PHASES.map(() => 1 / PHASES.length);
  const free = 1 - LEAST_SHARE * PHASES.length;
  return seconds.map((value) => LEAST_SHARE + (free * value) / total_s);
}

function arc(from, to) {
  const point = (share) => {
    const angle = 2 * Math.PI * share - Math.PI / 2;
    return `${(100 + RADIUS * Math.cos(angle)).toFixed(2)} ${(100 + RADIUS * Math.sin(angle)).toFixed(2)}`;
  };
  return `M${point(from)}A${RADIUS} ${RADIUS} 0 ${to - from > 0.5 ? 1 : 0} 1 ${point(to)}`;
}

export class RoundClock {
  constructor(context) {
    this.context = context;
    this.key = "";
    this.ring = shape("g", { class: "clock-ring" });
    this.hand = shape("circle", { class: "clock-hand", r: 7, cx: 100, cy: 100 - RADIUS });
    this.small = shape("text", { x: 100, y: 78, class: "clock-small" });
    this.big = shape("text", { x: 100, y: 110, class: "clock-big" });
    this.below = shape("text", { x: 100, y: 132, class: "clock-small" });
    this.list = element("ol", { class: "phase-list" });
    this.node = element(
      "div",
      { class: "clock" },
      shape("svg", { viewBox: "0 0 200 200", class: "clock-face", role: "img", "aria-label": "Round clock" }, this.ring, this.hand, this.small, this.big, this.below),
      this.list,
    );
    this.face = this.node.firstChild;
  }

  draw() {
    const { context } = this;
    const now = roundNow(context);
    const row = now.isLive ? context.rounds.nearestRow(context.tip) : context.rounds.row(now.round);
    const key = `${now.round} ${now.isLive} ${row ? row.round : "none"}`;
    if (key !== this.key) {
      this.key = key;
      this.drawRing(row, now);
    }
    let from = 0;
    for (const [index, phase] of PHASES.entries()) {
      const isCurrent = phase === now.phase;
      const isPast = now.isLive ? false : !now.isUnderWay || PHASES.indexOf(now.phase) > index;
      const state = isCurrent ? "current" : isPast ? "past" : "future";
      if (this.arcs[index].dataset.state !== state) {
        this.arcs[index].dataset.state = state;
        this.items[index].dataset.state = state;
        if (isCurrent) this.items[index].setAttribute("aria-current", "step");
        else this.items[index].removeAttribute("aria-current");
      }
      if (isCurrent && now.isLive) this.setHand(from + this.shares[index] / 2);
      from += this.shares[index];
    }
    if (!now.isLive) this.setHand(now.isUnderWay ? now.progress : 1);
    this.hand.style.display = now.isUnderWay && now.phase ? "" : "none";
    const words = now.isUnderWay ? (now.phase ? PHASE_WORDS[now.phase] : "under way") : now.round === 0 ? "no block yet" : "mined";
    setText(this.small, `Round`);
    const number = sayCount(now.round);
    setText(this.big, number);
    this.big.style.fontSize = number.length > 5 ? `${Math.max(15, 32 - 3 * (number.length - 5))}px` : "";
    setText(this.below, words);
    this.face.setAttribute("aria-label", `Round ${now.round}: ${words}`);
  }

  setHand(share) {
    const angle = 2 * Math.PI * share - Math.PI / 2;
    this.hand.setAttribute("cx", (100 + RADIUS * Math.cos(angle)).toFixed(2));
    this.hand.setAttribute("cy", (100 + RADIUS * Math.sin(angle)).toFixed(2));
  }

  drawRing(row, now) {
    this.shares = phaseShares(row);
    const seconds = phaseSeconds(row);
    const gap = 0.006;
    let from = 0;
    this.arcs = PHASES.map((phase, index) => {
      const path = shape("path", { d: arc(from + gap, Math.min(1, from + this.shares[index]) - gap), class: "clock-arc", style: { stroke: `var(${PHASE_COLOURS[phase]})` } });
      from += this.shares[index];
      return path;
    });
    replaceContent(this.ring, this.arcs);
    this.items = PHASES.map((phase, index) =>
      element(
        "li",
        {},
        element("i", { class: "swatch", style: { background: `var(${PHASE_COLOURS[phase]})` } }),
        element("span", {}, phase),
        element("span", { class: "phase-time" }, isKnown(seconds[index]) ? saySeconds(seconds[index]) : "–"),
      ),
    );
    replaceContent(
      this.list,
      this.items,
      row && row.rest_s > 0 ? element("li", {}, element("i", { class: "swatch" }), element("span", {}, "rest"), element("span", { class: "phase-time" }, saySeconds(row.rest_s))) : null,
      row ? element("li", { class: "phase-total" }, element("span", {}, now.isLive ? "last round" : "round"), element("span", { class: "phase-time" }, saySeconds(row.delay_s))) : null,
    );
  }
}
