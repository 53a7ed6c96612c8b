/* Where in the run one is: the replay's clock and its bar at the foot of every page. */

import { element, replaceContent, setText, shape } from "./dom.js";
import { sayCount, saySeconds } from "./format.js";
import { rewriteQuery } from "./router.js";

const SPEEDS = [0.25, 0.5, 1, 2, 5, 10, 25, 100];
const ROUND_S = 2; // an average round takes this long at speed 1
const ICONS = {
  play: "M7 4.5v15l12-7.5z",
  pause: "M6 4.5h4.2v15H6zM13.8 4.5H18v15h-4.2z",
  back: "M18 5v14l-9.5-7zM5.5 5H8v14H5.5z",
  forward: "M6 5v14l9.5-7zM16 5h2.5v14H16z",
};

/** Whether the reader asked for less motion. */
export function isMotionReduced() {
  return window.matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/** The position all pages share. `position` is the height of the newest block shown. */
export class Replay {
  /** @param {import("./rounds.js").RoundStore} rounds @param {number} tip @param {boolean} isLive */
  constructor(rounds, tip, isLive) {
    this.rounds = rounds;
    this.tip = tip;
    this.isLive = isLive;
    this.position = tip;
    this.progress = 0;
    this.isFollowing = true;
    this.isPlaying = false;
    this.speed = 1;
    this.listeners = { position: new Set(), frame: new Set(), state: new Set() };
    this.frame = 0;
    this.before_ms = 0;
    this.addressTimer = 0;
  }

  on(kind, listener) {
    this.listeners[kind].add(listener);
    return () => this.listeners[kind].delete(listener);
  }

  tell(kind) {
    for (const listener of [...this.listeners[kind]]) listener();
  }

  /** Moves to a height; the end follows whatever comes. */
  setPosition(height, progress = 0) {
    const wanted = Math.max(0, Math.min(this.tip, Math.round(height)));
    const isMoved = wanted !== this.position;
    this.position = wanted;
    this.progress = wanted === this.tip ? 0 : progress;
    this.isFollowing = wanted === this.tip;
    if (isMoved) this.tell("position");
    this.tell("frame");
    this.tell("state");
    this.keepAddressSoon();
  }

  /** A block was mined. */
  grow(tip) {
    if (tip <= this.tip) return;
    this.tip = tip;
    if (this.isFollowing) {
      this.position = tip;
      this.tell("position");
      this.tell("frame");
    }
    this.tell("state");
  }

  keepAddressSoon() {
    if (this.addressTimer) return;
    this.addressTimer = window.setTimeout(() => {
      this.addressTimer = 0;
      this.keepAddress();
    }, 400);
  }

  keepAddress() {
    rewriteQuery({ at: this.isFollowing ? null : this.position });
  }

  play() {
    if (this.isPlaying || this.tip === 0) return;
    if (this.position >= this.tip) this.setPosition(0);
    this.isPlaying = true;
    this.isFollowing = false;
    this.before_ms = 0;
    this.tell("state");
    this.frame = window.requestAnimationFrame((now) => this.advance(now));
  }

  pause() {
    if (!this.isPlaying) return;
    this.isPlaying = false;
    window.cancelAnimationFrame(this.frame);
    this.tell("state");
    this.keepAddressSoon();
  }

  toggle() {
    if (this.isPlaying) this.pause();
    else this.play();
  }

  step(by) {
    this.pause();
    this.setPosition(this.position + by);
  }

  /** How long the round after `position` takes on the wall at speed 1: in proportion to its delay. */
  roundSeconds(height) {
    const whole = this.rounds.whole;
    const row = this.rounds.nearestRow(height);
    const num = whole.last - whole.first + 1;
    const mean_s = whole.round.length ? whole.time_s[whole.round.length - 1] / Math.max(1, num) : 0;
    if (!row || !(row.delay_s > 0) || !(mean_s > 0)) return ROUND_S;
    return ROUND_S * Math.max(0.25, Math.min(4, row.delay_s / mean_s));
  }

  advance(now_ms) {
    if (!this.isPlaying) return;
    const passed_s = this.before_ms ? Math.min(0.25, (now_ms - this.before_ms) / 1000) : 0;
    this.before_ms = now_ms;
    let left_s = passed_s * this.speed;
    let position = this.position;
    let progress = this.progress;
    while (left_s > 0 && position < this.tip) {
      const round_s = this.roundSeconds(position + 1);
      const need_s = (1 - progress) * round_s;
      if (left_s < need_s) {
        progress += left_s / round_s;
        left_s = 0;
      } else {
        left_s -= need_s;
        progress = 0;
        position += 1;
      }
    }
    const isMoved = position !== this.position;
    this.position = position;
    this.progress = progress;
    if (isMoved) {
      this.tell("position");
      this.keepAddressSoon();
    }
    if (position >= this.tip) {
      this.progress = 0;
      this.isFollowing = true;
      this.isPlaying = false;
      this.tell("state");
      this.tell("frame");
      return;
    }
    if (!isMotionReduced() || isMoved) this.tell("frame");
    this.frame = window.requestAnimationFrame((now) => this.advance(now));
  }

  /** The modelled time at the position, in seconds. */
  time_s() {
    if (this.position === 0) return 0;
    const row = this.rounds.nearestRow(this.position);
    return row ? row.time_s : null;
  }

  stop() {
    this.pause();
    window.clearTimeout(this.addressTimer);
    for (const set of Object.values(this.listeners)) set.clear();
  }
}

function icon(name) {
  return shape("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, shape("path", { d: ICONS[name] }));
}

function roundButton(name, label, onClick) {
  return element("button", { type: "button", class: `round-button ${name}`, "aria-label": label, title: label, on: { click: onClick } }, icon(name));
}

/** Draws the bar for a replay into `place`; the old one's listeners went with its replay. */
export function drawReplayBar(place, replay) {
  const back = roundButton("back", "One block back", () => replay.step(-1));
  const forward = roundButton("forward", "One block forward", () => replay.step(1));
  const play = roundButton("play", "Play (space)", () => replay.toggle());
  const range = element("input", { type: "range", class: "replay-slider", min: 0, max: 0, step: 1, value: 0, "aria-label": "Position in the run (block)" });
  const height = element("b", {});
  const time = element("span", {});
  const speed = element(
    "select",
    { "aria-label": "Replay speed", title: `At 1× an average round takes ${ROUND_S} s` },
    SPEEDS.map((value) => element("option", { value, selected: value === replay.speed }, `${value}×`)),
  );
  const live = element("button", { type: "button", class: "live-button" });
  range.addEventListener("input", () => {
    replay.pause();
    replay.setPosition(Number(range.value));
  });
  speed.addEventListener("change", () => {
    replay.speed = Number(speed.value);
  });
  live.addEventListener("click", () => {
    replay.pause();
    replay.setPosition(replay.tip);
  });
  replaceContent(
    place,
    element("div", { class: "replay-buttons" }, back, play, forward),
    range,
    element("div", { class: "replay-where" }, height, time),
    speed,
    live,
  );
  let drawnPlaying = false;
  function draw() {
    range.max = String(replay.tip);
    range.value = String(replay.position);
    range.disabled = replay.tip === 0;
    const time_s = replay.time_s();
    setText(height, `Block ${sayCount(replay.position)} of ${sayCount(replay.tip)}`);
    setText(time, time_s === null ? "\u00a0" : `${saySeconds(time_s, 4)} ${replay.rounds.whole.is_measured ? "measured" : "modelled"}`);
    range.setAttribute("aria-valuetext", `block ${replay.position} of ${replay.tip}`);
    setText(live, replay.isLive ? "Live" : "End");
    live.title = replay.isLive ? "Follow the newest block" : "Go to the newest block";
    live.setAttribute("aria-pressed", String(replay.isFollowing && !replay.isPlaying));
    back.disabled = replay.position === 0;
    forward.disabled = replay.position >= replay.tip;
    play.disabled = replay.tip === 0;
    if (drawnPlaying !== replay.isPlaying) {
      drawnPlaying = replay.isPlaying;
      replaceContent(play, icon(drawnPlaying ? "pause" : "play"));
      const label = drawnPlaying ? "Pause (space)" : "Play (space)";
      play.setAttribute("aria-label", label);
      play.title = label;
    }
  }
  replay.on("position", draw);
  replay.on("state", draw);
  replay.rounds.onRows(draw);
  draw();
}
