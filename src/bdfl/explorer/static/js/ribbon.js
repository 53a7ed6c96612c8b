/* The ribbon of blocks: one tile per block, the round under way at its end. Only tiles in sight exist. */

import { element, replaceContent, setText, shape } from "./dom.js";
import { isKnown, sayCount, sayPercent, saySeconds } from "./format.js";
import { PHASES, roundNow } from "./clock.js";
import { href } from "./router.js";
import { FLAG } from "./rounds.js";

const MOST_PIXELS = 15000000; // wider elements are cut off by browsers
const BEYOND_SIGHT = 4; // tiles drawn on either side of what is in sight

export class Ribbon {
  constructor(context) {
    this.context = context;
    this.tilesByHeight = new Map();
    this.space = element("div", { class: "ribbon-space", role: "list", "aria-label": "Blocks, oldest first" });
    this.scroller = element("div", { class: "ribbon-scroll", "data-keys": true, tabindex: "-1" }, this.space);
    this.node = element("div", { class: "ribbon" }, this.scroller);
    this.pending = 0;
    this.isAtEnd = true;
    this.drawnEnd = -1;
    this.pitch = 0;
    this.widthSeen = 0;
    this.scroller.addEventListener("scroll", () => {
      this.judgeEnd();
      this.drawSoon();
    }, { passive: true });
    this.scroller.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    this.node.addEventListener("keydown", (event) => this.onKey(event));
    this.letDrag();
    this.observer = new ResizeObserver(() => {
      this.pitch = 0;
      this.drawSoon();
    });
    this.observer.observe(this.scroller);
    context.signal.addEventListener("abort", () => this.destroy(), { once: true });
  }

  /** Whether the newest block is in sight: then the ribbon follows it. */
  judgeEnd() {
    const room = this.scroller.scrollWidth - this.scroller.clientWidth;
    this.isAtEnd = this.scroller.scrollLeft >= room - this.pitch * 0.75;
  }

  /** Shift and a wheel move the ribbon sideways; the plain wheel stays the page's. */
  onWheel(event) {
    if (!event.shiftKey || event.deltaX) return;
    event.preventDefault();
    this.scroller.scrollLeft += event.deltaY;
  }

  /** A mouse pulls the ribbon along; fingers do that anyway. A pull is no click. */
  letDrag() {
    let start = null;
    let isPulled = false;
    this.scroller.addEventListener("dragstart", (event) => event.preventDefault());
    this.scroller.addEventListener("pointerdown", (event) => {
      isPulled = false;
      if (event.pointerType === "mouse" && event.button === 0) start = { x: event.clientX, left: this.scroller.scrollLeft };
    });
    window.addEventListener("pointermove", (event) => {
      if (!start) return;
      if (Math.abs(event.clientX - start.x) > 5) isPulled = true;
      if (isPulled) this.scroller.scrollLeft = start.left - (event.clientX - start.x);
    }, { signal: this.context.signal });
    window.addEventListener("pointerup", () => {
      start = null;
    }, { signal: this.context.signal });
    this.scroller.addEventListener("click", (event) => {
      if (!isPulled) return;
      event.preventDefault();
      isPulled = false;
    }, { capture: true });
  }

  onKey(event) {
    const tile = event.target instanceof Element ? event.target.closest(".block-tile") : null;
    if (!tile) return;
    const height = Number(tile.dataset.height);
    const end = this.context.position;
    const page = Math.max(1, Math.floor(this.scroller.clientWidth / this.pitch) - 1);
    const to = { ArrowLeft: height - 1, ArrowRight: height + 1, Home: 1, End: end, PageUp: height - page, PageDown: height + page }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    this.focusTile(Math.max(1, Math.min(end, to)));
  }

  focusTile(height) {
    const left = this.leftOf(height);
    const { scrollLeft, clientWidth } = this.scroller;
    if (left < scrollLeft + 20) this.scroller.scrollLeft = left - this.pitch;
    else if (left + this.pitch > scrollLeft + clientWidth) this.scroller.scrollLeft = left + this.pitch * 2 - clientWidth;
    this.judgeEnd();
    this.draw();
    const tile = this.tilesByHeight.get(height);
    if (tile) tile.anchor.focus({ preventScroll: true });
  }

  drawSoon() {
    if (this.pending) return;
    this.pending = window.requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
    });
  }

  /** Heights that are laid out: all, or the newest that browsers can lay out. */
  firstHeight() {
    const most = Math.floor(MOST_PIXELS / this.pitch);
    return Math.max(0, this.context.position - most);
  }

  leftOf(height) {
    return (height - this.firstHeight()) * this.pitch + this.edge;
  }

  draw() {
    const { context } = this;
    if (context.signal.aborted || !this.node.isConnected) return;
    if (!this.pitch) {
      const style = getComputedStyle(this.node);
      this.pitch = parseFloat(style.getPropertyValue("--pitch")) || 148;
      this.edge = parseFloat(style.getPropertyValue("--ribbon-edge")) || 32;
      this.drawnEnd = -1;
    }
    const now = roundNow(context);
    const end = context.position + (now.isUnderWay ? 1 : 0);
    if (end !== this.drawnEnd) {
      this.drawnEnd = end;
      this.space.style.width = `${this.leftOf(end) + this.pitch + this.edge}px`;
    }
    if (this.isAtEnd) {
      const room = this.scroller.scrollWidth - this.scroller.clientWidth;
      if (Math.abs(this.scroller.scrollLeft - room) > 1) this.scroller.scrollLeft = room;
    }
    const base = this.firstHeight();
    const first = Math.max(base, base + Math.floor((this.scroller.scrollLeft - this.edge) / this.pitch) - BEYOND_SIGHT);
    const last = Math.min(end, base + Math.ceil((this.scroller.scrollLeft + this.scroller.clientWidth) / this.pitch) + BEYOND_SIGHT);
    for (const [height, tile] of this.tilesByHeight) {
      if (height < first || height > last) {
        tile.node.remove();
        this.tilesByHeight.delete(height);
      }
    }
    for (let height = first; height <= last; height += 1) this.drawTile(height, height === end && now.isUnderWay ? now : null);
  }

  drawTile(height, now) {
    const { context } = this;
    const isPending = now !== null;
    const row = isPending || height === 0 ? null : context.rounds.row(height);
    const kind = isPending ? "pending" : height === 0 ? "genesis" : row ? "block" : "loading";
    let tile = this.tilesByHeight.get(height);
    if (!tile || tile.kind !== kind) {
      const fresh = this.makeTile(height, kind, row);
      if (tile) {
        const hadFocus = document.activeElement === tile.anchor;
        tile.node.replaceWith(fresh.node);
        if (hadFocus) fresh.anchor.focus({ preventScroll: true });
        if (tile.kind === "pending") fresh.node.classList.add("fresh");
      } else {
        this.insert(fresh, height);
      }
      this.tilesByHeight.set(height, fresh);
      tile = fresh;
    }
    const left = `${this.leftOf(height)}px`;
    if (tile.left !== left) {
      tile.left = left;
      tile.node.style.left = left;
    }
    if (isPending) this.drawPending(tile, now);
  }

  /** In the order of heights, so that reading and tabbing follow the chain. */
  insert(tile, height) {
    let next = null;
    let nearest = Infinity;
    for (const [other, { node }] of this.tilesByHeight) {
      if (other > height && other < nearest) [nearest, next] = [other, node];
    }
    this.space.insertBefore(tile.node, next);
  }

  makeTile(height, kind, row) {
    const { overview } = this.context;
    const tile = { kind, left: "", anchor: null, node: null };
    const position = { role: "listitem", class: `ribbon-item ${kind}`, "aria-posinset": height + 1, "aria-setsize": -1 };
    if (kind === "genesis") {
      tile.anchor = element("div", { class: "block-tile genesis", "data-height": 0 }, element("span", { class: "block-height" }, "Genesis"), element("span", { class: "block-line" }, `${sayCount(overview.clients.length)} clients`), element("span", { class: "block-line" }, overview.scheduler));
      tile.node = element("div", position, tile.anchor);
      return tile;
    }
    const joint = element("span", { class: "block-joint", "aria-hidden": "true" });
    if (kind === "pending") {
      tile.phase = element("span", { class: "block-main" }, "\u00a0");
      tile.fill = element("span", { class: "block-fill" });
      tile.anchor = element("div", { class: "block-tile pending", "data-height": height }, tile.fill, element("span", { class: "block-height" }, sayCount(height)), tile.phase, element("span", { class: "block-line" }, "under way"));
      tile.node = element("div", { ...position, "aria-current": "step" }, joint, tile.anchor, element("span", { class: "block-winner" }, "\u00a0"));
      return tile;
    }
    if (kind === "loading") {
      tile.anchor = element("a", { class: "block-tile loading", href: href(`/block/${height}`), "data-height": height }, element("span", { class: "block-height" }, sayCount(height)));
      tile.node = element("div", position, joint, tile.anchor);
      return tile;
    }
    const isBroken = Boolean(row.flags & FLAG.problem) || overview.problems.some((problem) => problem.height === height);
    const winner = row.proposer === null || row.proposer === undefined ? null : overview.clients[row.proposer];
    const marks = [];
    if (isBroken) marks.push(["broken", "bad"]);
    else if (row.is_empty) marks.push(["empty", "plain"]);
    if (row.flags & FLAG.evidence) marks.push(["evidence", "bad"]);
    if (row.flags & FLAG.membership) marks.push(["members", "info"]);
    if (row.attempt > 1) marks.push([`attempt ${row.attempt}`, "plain"]);
    const words = [
      `Block ${height}`,
      ...marks.map(([word]) => word),
      isKnown(row.accuracy) ? `accuracy ${sayPercent(row.accuracy)}` : null,
      isKnown(row.delay_s) ? `delay ${saySeconds(row.delay_s)}` : null,
      isKnown(row.num_updates) ? `${row.num_updates} of ${row.num_selected} updates` : null,
      winner ? `won by ${winner.name}` : null,
    ].filter(Boolean);
    const split = [["training", row.training_s], ["upload", row.upload_s], ["mining", row.mining_s], ["rest", row.rest_s]].filter(([, value_s]) => value_s > 0);
    const known = isKnown(row.accuracy) ? row.accuracy : null;
    tile.anchor = element(
      "a",
      {
        class: `block-tile ${isBroken ? "broken" : ""} ${row.is_empty ? "empty" : ""}`.trim(),
        href: href(`/block/${height}`),
        "data-height": height,
        "aria-label": words.join(", "),
        title: words.join(" · "),
      },
      element("span", { class: known === null ? "block-fill carried" : "block-fill", style: { height: `${Math.round((row.accuracyBefore ?? 0) * 100)}%` } }),
      element("span", { class: "block-height" }, sayCount(height)),
      element("span", { class: "block-main" }, known === null ? (isBroken ? "broken" : "–") : sayPercent(known)),
      element("span", { class: "block-line" }, isKnown(row.delay_s) ? saySeconds(row.delay_s) : "\u00a0"),
      element("span", { class: "block-line" }, isKnown(row.num_updates) ? `${sayCount(row.num_updates)} of ${sayCount(row.num_selected)} updates` : "\u00a0"),
      element("span", { class: "block-split", "aria-hidden": "true" }, isKnown(row.delay_s) ? split.map(([name, value_s]) => element("i", { class: `bar-part ${name}`, style: { flex: `${value_s / row.delay_s} 0 0` } })) : null),
    );
    if (isBroken) joint.append(breakMark());
    joint.classList.toggle("broken", isBroken);
    tile.node = element(
      "div",
      position,
      joint,
      tile.anchor,
      marks.length ? element("span", { class: "block-marks" }, marks.slice(0, 2).map(([word, tone]) => element("span", { class: `block-mark ${tone}` }, word))) : null,
      element("span", { class: "block-winner", "aria-hidden": "true" }, winner ? winner.name : "\u00a0"),
    );
    return tile;
  }

  drawPending(tile, now) {
    setText(tile.phase, now.phase || (now.isLive ? "waiting" : PHASES[0]));
    tile.fill.style.height = now.isLive ? "100%" : `${Math.round(now.progress * 100)}%`;
  }

  /** Tiles show what a row holds when it comes; a block that changed is drawn anew. */
  refresh() {
    for (const tile of this.tilesByHeight.values()) if (tile.kind === "block") tile.kind = "stale";
    this.drawSoon();
  }

  destroy() {
    window.cancelAnimationFrame(this.pending);
    this.observer.disconnect();
  }
}

function breakMark() {
  return shape(
    "svg",
    { viewBox: "0 0 24 24", class: "break-mark" },
    shape("circle", { cx: 12, cy: 12, r: 11 }),
    shape("path", { d: "M7.5 7.5l9 9M16.5 7.5l-9 9" }),
  );
}
