/* The network: clients and access points on a map, their channels, who is chosen, and models on their way. */

import { getJson } from "./data.js";
import { PHASES, RoundClock, roundNow } from "./clock.js";
import { badge, card, element, notice, replaceContent, setText, shape, table } from "./dom.js";
import { isKnown, sayCount, sayDecibel, sayFrequency, sayNumber, sayPower, sayRate } from "./format.js";
import { inRun, pageHead } from "./page_parts.js";
import { isMotionReduced } from "./replay.js";
import { href, link } from "./router.js";

const MOST_CACHED = 120; // rounds
const QUALITY_CLASSES = 5;
const LOOP_MS = 1400; // a model's way while a live phase lasts
const MARGIN = 34;

/** Which way things travel in a phase: 1 from the clients, -1 to them. */
const TRAVEL = { upload: 1, verify: -1, vote: 1 };
const TRAVELLERS = { upload: "model", verify: "model", vote: "vote" };

/** Keeps the documents of the rounds looked at, one request under way at a time. */
class NetworkRounds {
  constructor(context, onArrival) {
    this.context = context;
    this.onArrival = onArrival;
    this.documents = new Map();
    this.isAsking = false;
    this.wanted = null;
    this.failure = null;
  }

  get(round) {
    const found = this.documents.get(round);
    if (!found) this.ask(round);
    return found || null;
  }

  forget(round) {
    this.documents.delete(round);
  }

  async ask(round) {
    this.wanted = round;
    if (this.isAsking) return;
    this.isAsking = true;
    try {
      while (this.wanted !== null) {
        const asked = this.wanted;
        this.wanted = null;
        const { run, tip, signal } = this.context;
        const path = asked > tip ? `/network.json?run=${run}` : `/network.json?run=${run}&round=${asked}`;
        const found = await getJson(path, signal);
        this.documents.set(asked, found);
        this.failure = null;
        if (this.documents.size > MOST_CACHED) this.documents.delete(this.documents.keys().next().value);
        this.onArrival();
      }
    } catch (error) {
      if (!this.context.signal.aborted) {
        this.failure = error;
        this.onArrival();
      }
    } finally {
      this.isAsking = false;
    }
  }
}

/** The number channels are judged by: the rate where it is known, else the gain. */
function qualityOf(clients) {
  for (const [name, say, title] of [
    ["rate_bps", sayRate, "upload rate"],
    ["snr_db", sayDecibel, "signal to noise"],
    ["gain_db", sayDecibel, "channel gain"],
  ]) {
    if (clients.some((client) => isKnown(client[name]))) return { name, say, title };
  }
  return null;
}

/** Angles of points that stand equally far apart on an ellipse, from its top on. */
function evenAngles(across, down, num) {
  const steps = 720;
  const lengths = [0];
  for (let step = 1; step <= steps; step += 1) {
    const [a, b] = [(2 * Math.PI * (step - 1)) / steps - Math.PI / 2, (2 * Math.PI * step) / steps - Math.PI / 2];
    lengths.push(lengths[step - 1] + Math.hypot(across * (Math.cos(b) - Math.cos(a)), down * (Math.sin(b) - Math.sin(a))));
  }
  const angles = [];
  let step = 0;
  for (let index = 0; index < num; index += 1) {
    while (lengths[step] < (lengths[steps] * index) / num) step += 1;
    angles.push((2 * Math.PI * step) / steps - Math.PI / 2);
  }
  return angles;
}

/** Places of all nodes in a picture of width × height: by position, or in a ring; moved apart where they would touch. */
function layOut(network, width, height, radius) {
  const nodes = new Map();
  const num = network.clients.length;
  const anchors = network.access_points;
  if (network.has_positions) {
    const all = [...anchors, ...network.clients].filter((place) => isKnown(place.x_m) && isKnown(place.y_m));
    const xs = all.map((place) => place.x_m);
    const ys = all.map((place) => place.y_m);
    const [left, right] = [Math.min(...xs), Math.max(...xs)];
    const [low, high] = [Math.min(...ys), Math.max(...ys)];
    const scale = Math.min((width - 2 * MARGIN) / (right - left || 1), (height - 2 * MARGIN) / (high - low || 1));
    const put = (place) => ({
      x: width / 2 + ((isKnown(place.x_m) ? place.x_m : (left + right) / 2) - (left + right) / 2) * scale,
      y: height / 2 - ((isKnown(place.y_m) ? place.y_m : (low + high) / 2) - (low + high) / 2) * scale,
    });
    anchors.forEach((place, index) => nodes.set(`a${index}`, { ...put(place), radius: radius + 13, isAnchor: true }));
    network.clients.forEach((place) => nodes.set(`c${place.client}`, { ...put(place), radius }));
    nodes.scale = scale;
  } else {
    const [across, down] = [width / 2 - MARGIN, height / 2 - MARGIN];
    const angles = evenAngles(across, down, num);
    network.clients.forEach((place, index) => {
      const angle = angles[index];
      nodes.set(`c${place.client}`, { x: width / 2 + across * Math.cos(angle), y: height / 2 + down * Math.sin(angle), radius });
    });
    anchors.forEach((place, index) => {
      const angle = (2 * Math.PI * index) / anchors.length - Math.PI / 2;
      const share = anchors.length === 1 ? 0 : 0.38;
      nodes.set(`a${index}`, { x: width / 2 + across * share * Math.cos(angle), y: height / 2 + down * share * Math.sin(angle), radius: radius + 13, isAnchor: true });
    });
  }
  if (!anchors.length) nodes.set("hub", { x: width / 2, y: height / 2, radius: radius + 9, isAnchor: true });
  for (const node of nodes.values()) [node.trueX, node.trueY] = [node.x, node.y];
  const list = [...nodes.values()];
  for (let turn = 0; turn < 80; turn += 1) {
    let isMoved = false;
    for (let first = 0; first < list.length; first += 1) {
      for (let second = first + 1; second < list.length; second += 1) {
        const [a, b] = [list[first], list[second]];
        const least = a.radius + b.radius + 6;
        let [dx, dy] = [b.x - a.x, b.y - a.y];
        let distance = Math.hypot(dx, dy);
        if (distance >= least) continue;
        if (distance < 0.01) [dx, dy, distance] = [Math.cos(first + second), Math.sin(first + second), 1];
        const push = (least - distance) / 2 / distance;
        const shareOfA = a.isAnchor === b.isAnchor ? 1 : a.isAnchor ? 0 : 2;
        a.x -= dx * push * shareOfA;
        a.y -= dy * push * shareOfA;
        b.x += dx * push * (2 - shareOfA);
        b.y += dy * push * (2 - shareOfA);
        isMoved = true;
      }
    }
    for (const node of list) {
      node.x = Math.max(node.radius + 4, Math.min(width - node.radius - 4, node.x));
      node.y = Math.max(node.radius + 14, Math.min(height - node.radius - 14, node.y));
    }
    if (!isMoved) break;
  }
  return nodes;
}

class NetworkMap {
  constructor(context) {
    this.context = context;
    this.drawn = null;
    this.spread = null;
    this.wires = shape("g", {});
    this.travellers = shape("g", { class: "travellers", "aria-hidden": "true" });
    this.places = shape("g", {});
    this.svg = shape(
      "svg",
      { class: "map", role: "group", "aria-label": "Map of clients and access points" },
      shape(
        "defs",
        {},
        shape(
          "pattern",
          { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
          shape("rect", { width: 6, height: 6, class: "hatch-ground" }),
          shape("rect", { width: 2.4, height: 6, class: "hatch-line" }),
        ),
      ),
      this.wires,
      this.travellers,
      this.places,
    );
    this.legend = element("div", { class: "legend map-legend" });
    this.waiting = element("p", { class: "map-waiting", "aria-busy": "true" }, "Working out where everybody is…");
    this.node = element("div", { class: "map-box" }, this.svg, this.waiting);
  }

  /** Draws everything anew where it is another network, and what a round changes otherwise. */
  draw(network, now, online) {
    const width = Math.round(this.node.clientWidth);
    const height = Math.round(this.node.clientHeight);
    if (width < 50) return;
    const num = network.clients.length;
    const isSmall = width < 560;
    const radius = num <= 12 ? (isSmall ? 14 : 18) : num <= 30 ? (isSmall ? 11 : 15) : isSmall ? 9 : 13;
    const key = `${width} ${height} ${num} ${network.access_points.length} ${network.has_positions} ${network.clients.map((client) => `${client.x_m},${client.y_m},${client.access_point}`).join(";")}`;
    if (this.key !== key) {
      this.key = key;
      this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      this.layout = layOut(network, width, height, radius);
      this.build(network, radius);
    }
    this.network = network;
    this.waiting.remove();
    this.update(network, now, online);
  }

  anchorOf(client, network) {
    if (isKnown(client.access_point) && this.layout.has(`a${client.access_point}`)) return `a${client.access_point}`;
    for (const { a, b } of network.links) {
      if (a === `c${client.client}` && b.startsWith("a")) return b;
      if (b === `c${client.client}` && a.startsWith("a")) return a;
    }
    return network.access_points.length ? "a0" : "hub";
  }

  build(network, radius) {
    const wires = [];
    this.uplinks = new Map();
    for (const client of network.clients) {
      const anchor = this.anchorOf(client, network);
      const [from, to] = [this.layout.get(`c${client.client}`), this.layout.get(anchor)];
      const wire = shape("line", { x1: from.x, y1: from.y, x2: to.x, y2: to.y, class: "wire" }, shape("title", {}));
      this.uplinks.set(client.client, { wire, from, to });
      wires.push(wire);
    }
    for (const { a, b } of network.links) {
      if (a.startsWith("c") !== b.startsWith("c")) continue; // drawn above
      const [from, to] = [this.layout.get(a), this.layout.get(b)];
      if (from && to) wires.unshift(shape("line", { x1: from.x, y1: from.y, x2: to.x, y2: to.y, class: a.startsWith("a") ? "wire backbone" : "wire peer" }));
    }
    for (const node of network.has_positions ? this.layout.values() : []) {
      if (Math.hypot(node.x - node.trueX, node.y - node.trueY) > 5) wires.push(shape("path", { d: `M${node.x} ${node.y}L${node.trueX} ${node.trueY}`, class: "moved" }), shape("circle", { cx: node.trueX, cy: node.trueY, r: 1.8, class: "moved-dot" }));
    }
    if (this.layout.scale) wires.push(this.scaleBar());
    replaceContent(this.wires, wires);
    this.anchors = network.access_points.map((place, index) => {
      const { x, y } = this.layout.get(`a${index}`);
      const side = radius + 5;
      const word = shape("text", { y: side + 13, class: "node-word" });
      return {
        word,
        node: shape(
          "g",
          { class: "anchor", transform: `translate(${x} ${y})` },
          shape("title", {}, place.name),
          shape("rect", { x: -side, y: -side, width: 2 * side, height: 2 * side, rx: 6 }),
          shape("path", { d: "M0 -5V7M-5 7H5M-6 -9a8 8 0 0 0 0 8M6 -9a8 8 0 0 1 0 8", class: "mast" }),
          word,
        ),
      };
    });
    const hub = this.layout.get("hub");
    const hubNode = hub
      ? [shape("g", { class: "anchor hub", transform: `translate(${hub.x} ${hub.y})` }, shape("title", {}, "All members hear each other"), shape("rect", { x: -18, y: -14, width: 36, height: 28, rx: 6 }), shape("text", { y: 4, class: "hub-word" }, "all"))]
      : [];
    this.members = network.clients.map((client) => {
      const { x, y } = this.layout.get(`c${client.client}`);
      const word = shape("text", { y: radius + 12, class: "node-word" });
      const node = shape(
        "a",
        { href: href(`/client/${client.client}`), class: "member", transform: `translate(${x} ${y})`, "data-client": client.client },
        shape("title", {}),
        shape("circle", { r: radius + 6, class: "halo" }),
        shape("circle", { r: radius, class: "disc" }),
        shape("path", { d: `M${-radius * 0.7} ${radius * 0.7}L${radius * 0.7} ${-radius * 0.7}`, class: "strike" }),
        shape("text", { y: radius > 11 ? 4.5 : 3.5, class: radius > 11 ? "number" : "number small" }, String(client.client)),
        shape("path", { d: starPath(radius * 0.72), transform: `translate(${radius * 0.9} ${-radius * 0.95})`, class: "star" }),
        word,
      );
      return { node, word, title: node.firstChild };
    });
    replaceContent(this.places, hubNode, this.anchors.map((anchor) => anchor.node), this.members.map((member) => member.node));
    replaceContent(this.travellers);
    this.dots = new Map();
  }

  scaleBar() {
    const { scale } = this.layout;
    const rough_m = 90 / scale;
    const power = 10 ** Math.floor(Math.log10(rough_m));
    const length_m = [5, 2, 1].map((factor) => factor * power).find((value) => value <= rough_m) || power;
    const y = Number(this.svg.getAttribute("viewBox").split(" ")[3]) - 12;
    return shape("g", { class: "scale-bar", transform: `translate(12 ${y})` }, shape("path", { d: `M0 -4V0H${length_m * scale}V-4` }), shape("text", { x: length_m * scale + 6, y: 2 }, length_m >= 1000 ? `${length_m / 1000} km` : `${length_m} m`));
  }

  update(network, now, online) {
    const quality = qualityOf(network.clients);
    this.drawLegend(network, quality);
    const phase = now.isUnderWay ? PHASES.indexOf(now.phase) : PHASES.length;
    for (const [index, client] of network.clients.entries()) {
      const isOffline = online.clients(client) === false;
      const isDelivered = client.is_delivered && phase > PHASES.indexOf("upload");
      const isMissing = client.is_selected && !client.is_delivered && !now.isLive && phase > PHASES.indexOf("upload");
      const isWinner = isWinnerNow(client, now, this.context);
      const classes = ["member"];
      if (client.is_selected) classes.push("chosen");
      if (isDelivered) classes.push("delivered");
      if (isMissing) classes.push("missing");
      if (isWinner) classes.push("winner");
      if (!client.is_reachable) classes.push("unreachable");
      if (isOffline) classes.push("offline");
      if (now.isUnderWay && now.phase === "train" && client.is_selected && !isOffline) classes.push("busy");
      const member = this.members[index];
      member.node.setAttribute("class", classes.join(" "));
      setText(member.word, isOffline ? "offline" : !client.is_reachable ? "no contact" : "");
      const label = `${client.name}: ${memberWords(client, isOffline, isDelivered, isMissing, isWinner).join(", ")}${quality ? `, ${quality.title} ${quality.say(client[quality.name])}` : ""}`;
      setText(member.title, label);
      member.node.setAttribute("aria-label", label);
      const { wire } = this.uplinks.get(client.client);
      const level = quality ? this.levelOf(client[quality.name]) : 2;
      wire.setAttribute("class", `wire quality-${level} ${isOffline || !client.is_reachable ? "cut" : ""} ${client.is_selected ? "used" : ""}`.trim());
      setText(wire.firstChild, label);
    }
    network.access_points.forEach((place, index) => {
      const isOffline = online.anchors(place, index) === false;
      this.anchors[index].node.setAttribute("class", isOffline ? "anchor offline" : "anchor");
      setText(this.anchors[index].word, isOffline ? "offline" : "");
    });
  }

  /** 0 (worst) to 4 (best), on a scale that only ever widens, so that rounds can be compared. */
  levelOf(value) {
    if (!isKnown(value)) return 0;
    const [low, high] = this.spread;
    return Math.max(0, Math.min(QUALITY_CLASSES - 1, Math.floor(((value - low) / (high - low || 1)) * QUALITY_CLASSES)));
  }

  drawLegend(network, quality) {
    const values = quality ? network.clients.map((client) => client[quality.name]).filter(isKnown) : [];
    const before = this.spread;
    if (values.length) this.spread = [Math.min(...values, before ? before[0] : Infinity), Math.max(...values, before ? before[1] : -Infinity)];
    if (before && this.spread && before[0] === this.spread[0] && before[1] === this.spread[1] && this.legend.firstChild) return;
    const [low, high] = this.spread || [0, 1];
    const steps = Array.from({ length: QUALITY_CLASSES }, (_, index) => low + ((high - low) * index) / QUALITY_CLASSES);
    const sample = (mark, text) => element("span", {}, mark, text);
    const disc = (classes) => shape("svg", { viewBox: "-14 -14 28 28", class: "legend-disc", "aria-hidden": "true" }, shape("g", { class: `member ${classes}` }, shape("circle", { r: 12, class: "halo" }), shape("circle", { r: 9, class: "disc" }), shape("path", { d: "M-6 6L6 -6", class: "strike" }), shape("path", { d: starPath(7), transform: "translate(7 -7)", class: "star" })));
    replaceContent(
      this.legend,
      quality && values.length
        ? element("span", { class: "legend-group" }, element("b", {}, quality.title), steps.map((step, index) => sample(shape("svg", { viewBox: "0 0 26 10", class: "legend-wire", "aria-hidden": "true" }, shape("line", { x1: 1, y1: 5, x2: 25, y2: 5, class: `wire quality-${index}` })), index === 0 ? `< ${quality.say(steps[1])}` : `≥ ${quality.say(step)}`)))
        : null,
      element(
        "span",
        { class: "legend-group" },
        sample(disc("chosen"), "chosen"),
        sample(disc("chosen delivered"), "delivered"),
        sample(disc("chosen missing"), "missing"),
        sample(disc("winner"), "mined the block"),
        sample(disc("unreachable"), "no contact"),
        sample(disc("offline"), "offline"),
      ),
    );
  }

  /** Models on their way: `share` of it is done. */
  travel(now, share) {
    const { network } = this;
    if (!network || !this.uplinks) return;
    const direction = now.isUnderWay ? TRAVEL[now.phase] : undefined;
    const kind = TRAVELLERS[now.phase];
    const isStill = isMotionReduced();
    this.svg.dataset.phase = now.isUnderWay && now.phase ? now.phase : "none";
    for (const client of network.clients) {
      const isMoving = direction !== undefined && client.is_reachable && (now.phase !== "upload" || (now.isLive ? client.is_selected : client.is_delivered));
      let dot = this.dots.get(client.client);
      if (!isMoving) {
        if (dot) dot.style.display = "none";
        continue;
      }
      if (!dot) {
        dot = shape("g", {}, shape("rect", { x: -5, y: -5, width: 10, height: 10, rx: 2.5 }));
        this.dots.set(client.client, dot);
        this.travellers.append(dot);
      }
      dot.setAttribute("class", `traveller ${kind} ${now.phase}`);
      dot.style.display = "";
      const { from, to } = this.uplinks.get(client.client);
      const done = isStill ? 0.5 : direction > 0 ? share : 1 - share;
      dot.setAttribute("transform", `translate(${(from.x + (to.x - from.x) * done).toFixed(1)} ${(from.y + (to.y - from.y) * done).toFixed(1)})`);
    }
  }
}

/** Whether a client mined the block of the round on show; while live, the newest block. */
function isWinnerNow(client, now, context) {
  if (now.isLive) {
    const row = context.rounds.row(context.tip);
    return row !== null && row.proposer === client.client;
  }
  return client.is_winner && (!now.isUnderWay || now.phase === "vote");
}

function memberWords(client, isOffline, isDelivered, isMissing, isWinner) {
  const words = [];
  if (isOffline) words.push("offline");
  if (!client.is_reachable) words.push("no contact");
  if (isWinner) words.push("mined the block");
  if (isDelivered) words.push("delivered its update");
  else if (isMissing) words.push("chosen, update missing");
  else if (client.is_selected) words.push("chosen");
  else words.push("not chosen");
  return words;
}

function starPath(size) {
  const points = Array.from({ length: 10 }, (_, index) => {
    const angle = (Math.PI * index) / 5 - Math.PI / 2;
    const radius = index % 2 ? size * 0.45 : size;
    return `${(radius * Math.cos(angle)).toFixed(2)} ${(radius * Math.sin(angle)).toFixed(2)}`;
  });
  return `M${points.join("L")}Z`;
}

function stateBadges(client, isOffline, now, context) {
  const phase = now.isUnderWay ? PHASES.indexOf(now.phase) : PHASES.length;
  const badges = [];
  if (isOffline) badges.push(badge("offline", "bad"));
  else if (!client.is_reachable) badges.push(badge("no contact", "warn"));
  if (client.is_delivered && phase > PHASES.indexOf("upload")) badges.push(badge("delivered", "good"));
  else if (client.is_selected && !now.isLive && phase > PHASES.indexOf("upload")) badges.push(badge("missing", "bad"));
  else if (client.is_selected) badges.push(badge("chosen", "training"));
  if (isWinnerNow(client, now, context)) badges.push(badge(now.isLive ? "★ mined the last block" : "★ mined", "warn"));
  return badges.length ? element("span", { class: "chips" }, badges) : element("span", { class: "muted" }, "not chosen");
}

function networkTable(network, now, online, context) {
  const known = (name) => network.clients.some((client) => isKnown(client[name]));
  const hasAnchors = network.access_points.length > 0;
  const columns = [
    { title: "Client", cell: (client) => link(`/client/${client.client}`, client.name) },
    { title: "Round", cell: (client) => stateBadges(client, online.clients(client) === false, now, context) },
    hasAnchors ? { title: "Access point", cell: (client) => (isKnown(client.access_point) ? network.access_points[client.access_point].name : null) } : null,
    known("rate_bps") ? { title: "Upload rate", isNumber: true, cell: (client) => sayRate(client.rate_bps) } : null,
    known("snr_db") ? { title: "Signal to noise", isNumber: true, cell: (client) => sayDecibel(client.snr_db) } : null,
    known("gain_db") ? { title: "Channel gain", isNumber: true, cell: (client) => sayDecibel(client.gain_db) } : null,
    { title: "Training at", isNumber: true, cell: (client) => (client.cpu_hz > 0 ? sayFrequency(client.cpu_hz) : null) },
    { title: "Mining at", isNumber: true, cell: (client) => (client.mining_hz > 0 ? sayFrequency(client.mining_hz) : null) },
    { title: "Sending with", isNumber: true, cell: (client) => (client.power_w > 0 ? sayPower(client.power_w) : null) },
    network.has_positions ? { title: "Position", isNumber: true, cell: (client) => (isKnown(client.x_m) ? `${sayNumber(client.x_m)}, ${sayNumber(client.y_m)} m` : null) } : null,
  ].filter(Boolean);
  return table({
    caption: `Clients in round ${network.round}`,
    columns,
    rows: network.clients.map((client) => columns.map((column) => column.cell(client))),
    rowClass: (index) => (online.clients(network.clients[index]) === false ? "offline" : null),
  });
}

export async function showNetwork(root, route, context) {
  const head = pageHead({ title: "Network", lead: "\u00a0", json: inRun("/network.json") });
  const lead = head.querySelector(".page-lead");
  const map = new NetworkMap(context);
  const clock = new RoundClock(context);
  const tablePlace = element("div", { class: "network-table" });
  const trouble = element("div", {});
  const mapCard = card("Map", { class: "map-card" }, map.node, map.legend);
  const mapNote = element("p", { class: "card-note" }, "\u00a0");
  mapCard.querySelector("h2").after(mapNote);
  replaceContent(
    root,
    head,
    trouble,
    element("div", { class: "grid network-grid" }, mapCard, card("Round clock", { class: "clock-card" }, clock.node)),
    element("div", { class: "section-head" }, element("h2", { class: "section-title" }, "The same in numbers")),
    tablePlace,
  );

  /** Whether a node answers now: by the newest status, else by the document; null: nobody asked, or one looks back. */
  const online = {
    clients: (client) => {
      if (!context.replay.isFollowing) return null;
      const node = context.status ? context.status.nodes.find((one) => one.number === client.client) : null;
      return node ? node.is_online : client.is_online;
    },
    anchors: (place, index) => {
      if (!context.replay.isFollowing) return null;
      const found = context.status ? context.status.access_points.find((one) => one.name === place.name) || context.status.access_points[index] : null;
      return found ? found.is_online : place.is_online;
    },
  };
  let tableTimer = 0;
  let tableKey = "";
  let shownNetwork = null;
  const rounds = new NetworkRounds(context, () => draw());

  function drawTable(network, now) {
    const key = `${network.round} ${now.isUnderWay} ${now.phase} ${network.clients.map((client) => online.clients(client)).join()}`;
    if (key === tableKey) return;
    tableKey = key;
    window.clearTimeout(tableTimer);
    tableTimer = window.setTimeout(
      () => {
        const box = tablePlace.querySelector(".table-box");
        const [left, top] = box ? [box.scrollLeft, box.scrollTop] : [0, 0];
        replaceContent(tablePlace, networkTable(network, now, online, context));
        tablePlace.firstChild.scrollTo(left, top);
      },
      tablePlace.firstChild ? 150 : 0,
    );
  }

  function draw() {
    if (context.signal.aborted) return;
    const now = roundNow(context);
    clock.draw();
    const network = rounds.get(Math.max(1, now.round)) || shownNetwork;
    replaceContent(trouble, rounds.failure && !network ? notice("bad", rounds.failure.message) : null);
    if (rounds.failure && !network) setText(map.waiting, "The map could not be had.");
    if (!network) return;
    shownNetwork = network;
    map.draw(network, now, online);
    const num = network.clients.filter((client) => client.is_selected).length;
    const winner = network.clients.find((client) => client.is_winner);
    const numOffline = network.clients.filter((client) => online.clients(client) === false).length;
    setText(
      lead,
      [
        `Round ${sayCount(network.round)}: ${num} of ${network.clients.length} clients are chosen`,
        winner && !now.isUnderWay ? `${winner.name} mined the block` : null,
        numOffline ? `${numOffline} ${numOffline === 1 ? "is" : "are"} offline` : null,
      ]
        .filter(Boolean)
        .join(" · "),
    );
    setText(mapNote, network.has_positions ? "by position; nodes that would touch are moved apart" : `in a ring${network.why ? `: ${network.why}` : ": positions are not known"}`);
    drawTable(network, now);
    travel(now);
  }

  function travel(now) {
    if (now.isLive) map.travel(now, (performance.now() % LOOP_MS) / LOOP_MS);
    else map.travel(now, now.inPhase || 0);
  }

  // While live there is no replay's clock to move the models along.
  let frame = 0;
  function loop() {
    frame = window.requestAnimationFrame(loop);
    if (context.isReplay || isMotionReduced()) return;
    travel(roundNow(context));
  }
  if (context.overview.is_live) loop();
  const observer = new ResizeObserver(() => draw());
  observer.observe(map.node);
  context.signal.addEventListener("abort", () => {
    window.cancelAnimationFrame(frame);
    window.clearTimeout(tableTimer);
    observer.disconnect();
  }, { once: true });
  context.onFrame(draw);
  context.onPosition(draw);
  context.onRows(draw);
  context.onStatus(draw);
  context.onOverview(() => {
    rounds.forget(context.tip); // it was the round under way, and is a block now
    draw();
  });
  draw();
}
