/* The overview: the ribbon, the round under way, who trains, and the curves. */

import { ChartGroup, curveColour } from "./charts.js";
import { RoundClock, roundNow } from "./clock.js";
import { card, element, notice, replaceContent, setText, tile, tiles } from "./dom.js";
import { isKnown, sayBytes, sayCount, sayNumber, sayPercent, sayPlural, saySeconds } from "./format.js";
import { inRun, twinAddress } from "./page_parts.js";
import { Ribbon } from "./ribbon.js";
import { href } from "./router.js";
import { countRowsUntil } from "./rounds.js";

const MOST_CURVES = 8; // clients; more become heat strips
const STATES = {
  ".": ["idle", "idle", "not scheduled this round"],
  s: ["delivered", "delivered", "trained and its update is in the block"],
  d: ["declined", "declined", "was scheduled and declined or diverged"],
  m: ["missed", "missed", "was scheduled and its update did not arrive"],
  "-": ["left", "no member", "is no member in this round"],
  r: ["resting", "resting", "sits out or cannot be reached"],
  training: ["training", "training", "trains now"],
  uploading: ["uploading", "uploading", "sends its update"],
  mining: ["mining", "mining", "looks for a proof of work"],
  scheduled: ["scheduled", "scheduled", "is scheduled this round"],
  online: ["idle", "online", "is online"],
  offline: ["offline", "offline", "does not answer"],
  // Of a live node, as bdfl node status says it.
  starting: ["idle", "starting", "is starting"],
  waiting: ["declined", "waiting", "waits for a quorum"],
  "catching-up": ["uploading", "catching up", "is behind the others"],
  "not-training": ["declined", "not training", "gives no updates"],
  misconfigured: ["declined", "misconfigured", "has a wrong clock or a twin"],
  stalled: ["missed", "stalled", "has no new block"],
  finished: ["delivered", "finished", "is finished"],
  removed: ["left", "removed", "was removed"],
  stopped: ["offline", "stopped", "does not run"],
};

function describeRun(overview) {
  const kinds = { run: "Run", chain: "Chain", node: "Node of a network", network: "Network", record: "Record of a simulation" };
  const parts = [
    `${kinds[overview.kind] || "Run"} of ${sayPlural(overview.clients.length, "client")}`,
    `scheduler ${overview.scheduler}`,
    overview.aggregation ? `aggregation ${overview.aggregation}` : null,
    overview.work ? `proof of work ${overview.work}` : null,
    overview.quorum_rule ? `quorum ${overview.quorum_rule}` : null,
    isKnown(overview.model_bytes) ? `model of ${sayBytes(overview.model_bytes)}` : null,
    isKnown(overview.tradeoff) ? `V = ${sayNumber(overview.tradeoff)}` : null,
  ];
  return parts.filter(Boolean).join(" · ");
}

/** What a round's delay mostly consists of. */
function largestPart(row) {
  const parts = [["training", row.training_s], ["upload", row.upload_s], ["mining", row.mining_s], ["rest", row.rest_s]].filter(([, value]) => isKnown(value));
  if (!parts.length || !(row.delay_s > 0)) return "\u00a0";
  const [name, value] = parts.reduce((most, part) => (part[1] > most[1] ? part : most));
  return `${sayPercent(value / row.delay_s, 0)} of it ${name}`;
}

/** What is known at the position, in numbers. */
function drawNumbers(place, context) {
  const { overview, position, rounds } = context;
  const row = position > 0 ? rounds.nearestRow(position) : null;
  const whole = rounds.whole;
  const rows = countRowsUntil(whole, position);
  let best = null;
  let bestRound = null;
  for (let index = 0; index < rows; index += 1) {
    const value = whole.accuracy ? whole.accuracy[index] : null;
    if (isKnown(value) && (best === null || value > best)) [best, bestRound] = [value, whole.round[index]];
  }
  let accuracy = null;
  for (let index = rows - 1; index >= 0 && accuracy === null; index -= 1) accuracy = whole.accuracy[index];
  let shortfall = null;
  let worst = null;
  let energy = null;
  if (row && row.count) {
    overview.clients.forEach((client, number) => {
      const missing = client.rate - row.count[number] / Math.max(1, position);
      if (isKnown(missing) && (shortfall === null || missing > shortfall)) [shortfall, worst] = [missing, client.name];
    });
    const shares = row.energy_share ? row.energy_share.filter(isKnown) : [];
    if (shares.length) energy = Math.max(...shares);
  }
  // Members that came or went have fewer rounds to take part in: at the end the summary knows better.
  if (position === context.tip && isKnown(overview.summary.worst_shortfall)) shortfall = overview.summary.worst_shortfall;
  const planned = overview.planned_rounds;
  replaceContent(
    place,
    tile("Height", sayCount(position), isKnown(planned) ? `of ${sayPlural(planned, "planned round")}` : sayPlural(context.tip, "block")),
    tile("Accuracy", sayPercent(accuracy), best === null ? "not evaluated yet" : `best ${sayPercent(best)} at block ${sayCount(bestRound)}`),
    tile(whole.is_measured ? "Time, measured" : "Time, modelled", row ? saySeconds(row.time_s, 4) : saySeconds(0), row ? `${saySeconds(row.time_s / Math.max(1, position))} a round` : "nothing happened yet"),
    tile("Newest delay", row ? saySeconds(row.delay_s) : "–", row ? largestPart(row) : "\u00a0"),
    tile("Worst shortfall", shortfall === null ? "–" : sayPercent(Math.max(0, shortfall)), shortfall === null ? "participation below β" : shortfall > 0 ? `${worst} below its β` : "all at or above β"),
    tile("Highest energy use", sayPercent(energy, 0), "of a budget, newest round", energy !== null && energy > 1.0005 ? "bad" : ""),
  );
}

/** State of every client in the round on show. */
function clientStates(context, now) {
  const { overview, rounds, status } = context;
  if (now.isLive && status) {
    const byNumber = new Map(status.nodes.map((node) => [node.number, node]));
    return overview.clients.map((client) => {
      const node = byNumber.get(client.client);
      if (!node) return ".";
      if (!node.is_online) return node.state || "offline";
      if (node.state !== "working" && STATES[node.state]) return node.state;
      if (node.is_training) return "training";
      if (node.is_mining) return "mining";
      return "online";
    });
  }
  const row = rounds.row(now.round);
  const offline = new Map(status && context.replay.isFollowing ? status.nodes.filter((node) => !node.is_online).map((node) => [node.number, node.state || "offline"]) : []);
  return overview.clients.map((client, number) => {
    if (offline.has(client.client)) return offline.get(client.client);
    if (!row || !row.state) return null;
    const state = row.state[number] || ".";
    if (!now.isUnderWay || state === "." || state === "-" || state === "r") return state;
    if (now.phase === "schedule") return "scheduled";
    if (now.phase === "train") return "training";
    if (now.phase === "upload") return state === "s" ? "uploading" : "training";
    return state;
  });
}

class ClientChips {
  constructor(context) {
    this.context = context;
    const { clients } = context.overview;
    this.isCompact = clients.length > 16;
    this.chips = clients.map((client) => {
      const word = element("span", { class: "client-state" }, "\u00a0");
      const share = element("i", { class: "took-fill" });
      const promise = element("i", { class: "took-mark", style: { left: `${Math.min(100, client.rate * 100)}%` } });
      const anchor = element(
        "a",
        { class: "client-chip", href: href(`/client/${client.client}`), "data-client": client.client },
        element("span", { class: "client-dot", "aria-hidden": "true" }),
        element("span", { class: "client-name" }, this.isCompact ? String(client.client) : client.name),
        word,
        element("span", { class: "took-bar", "aria-hidden": "true" }, share, promise),
      );
      return { anchor, word, share, state: undefined };
    });
    this.node = element("ul", { class: `client-chips ${this.isCompact ? "compact" : ""}` }, this.chips.map((chip) => element("li", {}, chip.anchor)));
  }

  draw() {
    const { context } = this;
    const now = roundNow(context);
    const states = clientStates(context, now);
    const row = context.rounds.nearestRow(context.position);
    const reasons = new Map((context.status ? context.status.nodes : []).map((node) => [node.number, node.state === "working" ? "" : node.reason]));
    context.overview.clients.forEach((client, number) => {
      const chip = this.chips[number];
      if (!chip) return;
      const state = states[number];
      const reason = (now.isLive && reasons.get(client.client)) || "";
      const share = row && row.count && context.position > 0 ? row.count[number] / context.position : null;
      const [name, word, sentence] = STATES[state] || ["idle", "–", "nothing is known of this round"];
      if (chip.state !== state || chip.shown !== share || chip.reason !== reason) {
        chip.state = state;
        chip.reason = reason;
        chip.shown = share;
        chip.anchor.dataset.state = name;
        setText(chip.word, word);
        chip.share.style.width = `${Math.min(100, (share || 0) * 100)}%`;
        chip.share.dataset.short = String(share !== null && share < client.rate - 0.005);
        const label = `${client.name} ${sentence}${reason ? `: ${reason}` : ""}${share === null ? "" : `; took part in ${sayPercent(share)} of the rounds, β ${sayPercent(client.rate, 0)}`}`;
        chip.anchor.title = label;
        chip.anchor.setAttribute("aria-label", label);
      }
    });
    return states;
  }
}

/** One column per client out of rows × clients. */
function perClient(data, name, pick) {
  const rows = data.clients && data.clients[name] ? data.clients[name] : [];
  return (number) => rows.map((row, index) => pick(row ? row[number] : null, index, number));
}

function extreme(series, index, isHighest) {
  let found = null;
  for (const one of series) {
    const value = one.values[index];
    if (isKnown(value) && (found === null || (isHighest ? value > found.value : value < found.value))) found = { label: one.label, value };
  }
  return found;
}

function overviewCharts(clients) {
  const isMany = clients.length > MOST_CURVES;
  const kind = isMany ? "heat" : "lines";
  const stripHeight = isMany ? Math.max(210, Math.min(420, 60 + clients.length * 7)) : 210;
  const series = (column) =>
    clients.map((client, number) => ({ label: client.name, short: String(client.client), colour: curveColour(number), width: 1.6, isStepped: false, values: column(number) }));
  const highest = (word, say) => (data, index, all) => {
    const found = extreme(all, index, true);
    return found ? `${word} ${found.label} ${say(found.value)}` : "–";
  };
  const percent = (value) => sayPercent(value, 0);
  const points = (value) => (isKnown(value) ? `${value > 0 ? "+" : value < 0 ? "−" : "±"}${Math.abs(value * 100).toFixed(1)}\u202fpp` : "–");
  return [
    {
      id: "accuracy",
      title: "Accuracy",
      note: "of the newest model on the test set",
      kind: "lines",
      least: 0,
      say: (value) => sayPercent(value),
      sayTick: percent,
      series: (data) => [{ label: "accuracy", colour: "--accent", values: data.accuracy || [], width: 2.4 }],
      readout: (data, index, [{ values }]) => {
        let known = index;
        while (known >= 0 && !isKnown(values[known])) known -= 1;
        if (known < 0) return "not evaluated yet";
        return known === index ? sayPercent(values[index]) : `${sayPercent(values[known])}, evaluated last at block ${sayCount(data.round[known])}`;
      },
    },
    {
      id: "delay",
      title: "Delay of a round",
      note: "split into what the slowest client waited for",
      kind: "stack",
      least: 0,
      say: (value) => saySeconds(value),
      series: (data) => [
        { label: "training", colour: "--training", values: data.training_s },
        { label: "upload", colour: "--upload", values: data.upload_s },
        { label: "mining", colour: "--mining", values: data.mining_s },
        { label: "rest", colour: "--rest", values: data.rest_s },
      ],
      readout: (data, index) =>
        `${saySeconds(data.delay_s[index])} = ${saySeconds(data.training_s[index])} training + ${saySeconds(data.upload_s[index])} upload + ${saySeconds(data.mining_s[index])} mining${data.rest_s[index] > 0 ? ` + ${saySeconds(data.rest_s[index])} rest` : ""}`,
    },
    {
      id: "energy",
      title: "Energy against budget",
      note: "each client's energy as a share of its budget for the round",
      // Strips even for few clients: who trains spends much, who does not spends little, so curves would only zigzag.
      kind: "heat",
      scale: "budget",
      height: stripHeight,
      least: 0,
      most: 1,
      say: percent,
      series: (data) => series(perClient(data, "energy_share", (value) => value)),
      readout: highest("highest", percent),
    },
    {
      id: "queue",
      title: "Queue backlog",
      note: "virtual queue: how much participation each client is still owed",
      kind,
      scale: "sequential",
      height: stripHeight,
      least: 0,
      say: (value) => sayNumber(value, 3),
      sayScale: (value) => `${sayNumber(value, 2)} rounds`,
      series: (data) => series(perClient(data, "queue", (value) => value)),
      readout: (data, index, all) => `${highest("longest", (value) => sayNumber(value, 3))(data, index, all)} · mean ${sayNumber(data.mean_queue[index], 3)}`,
    },
    {
      id: "participation",
      title: "Participation against β",
      note: "share of the rounds with an update that counts, minus the promised share β, in percentage points",
      kind,
      scale: "diverging",
      isRobust: true,
      height: stripHeight,
      wide: true,
      say: points,
      sayTick: (value) => (isKnown(value) ? `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(Math.round(value * 100))}\u202fpp` : ""),
      limit: { value: 0, label: "as promised" },
      series: (data) =>
        series(perClient(data, "count", (value, index, number) => (isKnown(value) && data.round[index] > 0 ? value / data.round[index] - clients[number].rate : null))),
      readout: (data, index, all) => {
        const found = extreme(all, index, false);
        return found ? `furthest behind ${found.label} ${points(found.value)}` : "–";
      },
    },
  ];
}

/** Feeds a group of charts: the whole run, or finer rows for the part that is zoomed to. */
class ChartFeed {
  constructor(context) {
    this.context = context;
    this.detail = null;
    this.timer = 0;
    this.controller = null;
    this.group = new ChartGroup({
      signal: context.signal,
      onZoom: (first, last, isWhole) => this.onZoom(first, last, isWhole),
      onPick: (round) => context.setPosition(round),
    });
  }

  draw() {
    const { whole } = this.context.rounds;
    const rounds = this.detail || whole;
    const end = whole.round.length - 1;
    const reach = end < 0 ? null : { round: whole.round[end], time_s: whole.time_s[end] };
    this.group.setData(rounds === whole ? this.copyOfWhole() : rounds, countRowsUntil(rounds, this.context.position), reach);
  }

  /** Live rows are appended in place: the group must see another object to make its columns anew. */
  copyOfWhole() {
    const { whole } = this.context.rounds;
    if (!this.copy || this.copy.of !== whole || this.copy.length !== whole.round.length) this.copy = { of: whole, length: whole.round.length, data: { ...whole } };
    return this.copy.data;
  }

  onZoom(first, last, isWhole) {
    window.clearTimeout(this.timer);
    if (this.controller) this.controller.abort();
    const { rounds } = this.context;
    if (isWhole || rounds.whole.bucket === 1) {
      if (this.detail) {
        this.detail = null;
        this.draw();
      }
      return;
    }
    const room = Math.ceil((last - first) / 2);
    const from = Math.max(1, first - room);
    const to = Math.min(rounds.whole.last, last + room);
    const detail = this.detail;
    if (detail && detail.first <= first && detail.last >= last && (detail.bucket === 1 || detail.last - detail.first <= 3 * (to - from))) return;
    this.timer = window.setTimeout(async () => {
      this.controller = new AbortController();
      try {
        this.detail = await rounds.window(from, to, this.controller.signal);
        this.draw();
      } catch (error) {
        if (error.name !== "AbortError") this.detail = null; // the coarse rows stay
      }
    }, 150);
  }
}

function whyEmpty(overview) {
  if (overview.is_live) return "No block yet: the first one appears here as soon as it is mined.";
  return "No block yet: this run stopped before its first block, so there is nothing to replay.";
}

export async function showOverview(root, route, context) {
  const { overview } = context;
  root.classList.add("with-ribbon");
  const ribbon = new Ribbon(context);
  const lead = element("p", { class: "lead" }, describeRun(overview));
  const nothing = element("p", { class: "ribbon-empty", hidden: true }, whyEmpty(overview));
  const band = element("section", { class: "band", "aria-label": "Blocks" }, element("div", { class: "band-head" }, element("div", {}, element("h1", {}, overview.name), lead), element("a", { class: "band-twin", href: twinAddress(inRun("/index.json")), target: "_blank", rel: "noopener" }, "JSON")), ribbon.node, nothing);
  const numbers = tiles();
  numbers.id = "numbers";
  const clock = new RoundClock(context);
  const chips = new ClientChips(context);
  const chipSummary = element("p", { class: "card-note" }, "\u00a0");
  const chipCard = card("Who trains now", {}, chips.node, element("p", { class: "legend took-legend" }, element("span", {}, element("i", { class: "took-bar sample" }, element("i", { class: "took-fill", style: { width: "60%" } }), element("i", { class: "took-mark", style: { left: "75%" } })), "share of rounds taken part in; the tick is β")));
  chipCard.querySelector("h2").after(chipSummary);
  const feed = new ChartFeed(context);
  const charts = overviewCharts(overview.clients).map((spec) => feed.group.add(spec));
  replaceContent(
    root,
    band,
    element(
      "div",
      { class: "inner" },
      numbers,
      element("div", { class: "grid now-grid" }, card("Round clock", { class: "clock-card" }, clock.node), chipCard),
      element("div", { class: "section-head" }, element("h2", { class: "section-title" }, "Curves"), feed.group.toolbar()),
      element("div", { class: "grid two" }, charts),
    ),
  );

  function drawNow() {
    clock.draw();
    const states = chips.draw();
    const now = roundNow(context);
    const num = states.filter((state) => ["s", "d", "m", "training", "uploading", "scheduled"].includes(state)).length;
    const numOffline = states.filter((state) => state === "offline" || state === "stopped").length;
    const told = states.some((state) => state !== null);
    setText(
      chipSummary,
      now.round === 0
        ? "nobody yet"
        : !told
          ? "\u00a0"
          : now.isLive
            ? `round ${sayCount(now.round)}: ${num} of ${states.length} train${numOffline ? `, ${numOffline} offline` : ""}`
            : numOffline
              ? `${numOffline} of ${states.length} are offline`
              : `round ${sayCount(now.round)}: ${num} of ${states.length} scheduled${now.isUnderWay ? "" : `, ${states.filter((state) => state === "s").length} delivered`}`,
    );
    ribbon.drawSoon();
  }
  function drawAll() {
    nothing.hidden = context.tip > 0;
    drawNumbers(numbers, context);
    drawNow();
    feed.draw();
  }
  let pending = 0;
  function drawAllSoon() {
    if (pending) return;
    pending = window.requestAnimationFrame(() => {
      pending = 0;
      if (!context.signal.aborted) drawAll();
    });
  }
  context.onPosition(drawAllSoon);
  context.onRows(() => {
    ribbon.refresh();
    drawAllSoon();
  });
  context.onFrame(drawNow);
  context.onStatus(drawNow);
  context.onOverview(drawAllSoon);
  drawAll();
  try {
    await context.rounds.load();
  } catch (error) {
    if (!context.signal.aborted) numbers.after(notice("bad", error.message));
  }
}
