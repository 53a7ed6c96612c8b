/* Where a model comes from: back through the models it grew from and the updates they are made of. */

import { getJson, hasDocument } from "./data.js";
import { badge, card, element, emptyState, notice, replaceContent, shape, table, tile, tiles } from "./dom.js";
import { isKnown, sayCount, sayNumber, sayPercent, sayPlural } from "./format.js";
import { blockLink, clientLink, clientName, copyable, debounced, inRun, pageHead, shareBar } from "./page_parts.js";
import { widthBox } from "./plane.js";
import { href, link, rewriteQuery } from "./router.js";

const MOST_DOTS = 700; // updates drawn at once
const MOST_COLUMNS = 60; // models drawn at once

function modelAddress(height, choice) {
  const query = new URLSearchParams();
  if (choice.other !== null) query.set("other", String(choice.other));
  if (choice.without !== null) query.set("without", String(choice.without));
  const text = query.toString();
  return inRun(`/model/${height}.json${text ? `?${text}` : ""}`);
}

function wholeNumber(text) {
  return text !== null && /^\d{1,9}$/.test(text) ? Number(text) : null;
}

export async function showModel(root, route, context) {
  const { height } = route;
  if (height === 0) {
    showUntrained(root, context);
    return;
  }
  const choice = { other: wholeNumber(route.query.get("other")), without: wholeNumber(route.query.get("without")) };
  const document = await getJson(modelAddress(height, { other: null, without: null }), context.signal);
  const { overview } = context;
  const isUntrained = document.made_in === 0;
  const comparePlace = element("div", { "aria-live": "polite" });
  const withoutPlace = element("div", { "aria-live": "polite" });
  replaceContent(
    root,
    pageHead({
      title: `Model after block ${sayCount(height)}`,
      badges: [document.is_stored ? null : badge("weights pruned", "warn", "Its bytes are no longer kept here"), isUntrained ? badge("untrained", "info") : null],
      lead: element("span", {}, "digest ", copyable(document.model, "the model's digest", 24)),
      json: inRun(`/model/${height}.json`),
      previous: height > 1 ? [`/model/${height - 1}`, sayCount(height - 1)] : null,
      next: height < overview.height ? [`/model/${height + 1}`, sayCount(height + 1)] : null,
    }),
    tiles(
      tile("Accuracy", sayPercent(document.accuracy), "on the test data"),
      tile("Made in", isUntrained ? "the genesis" : blockLink(document.made_in), document.made_in === height || isUntrained ? null : `blocks since were empty`),
      tile("Made of", sayPlural(document.contributions.filter((one) => one.weight !== null && one.weight > 0).length || document.contributions.length, "client's work", "clients' work"), "updates that still count in it"),
      tile("Aggregation", document.rule, "how updates become one model"),
      tile("Models before it", sayCount(ancestorsOf(document).length), document.pruned_to > 0 ? `weights pruned up to block ${sayCount(document.pruned_to)}` : "all weights kept"),
    ),
    document.why ? notice("warn", document.why) : null,
    document.pruned_to > 0 ? notice("info", `Updates up to block ${sayCount(document.pruned_to)} are pruned: their digests, weights and signatures stay on the chain, their bytes are gone.`) : null,
    document.is_trusted ? notice("warn", "Taken on trust: the updates of this model were gone when this node caught up. A quorum voted for it; this node never recomputed it.") : null,
    element(
      "div",
      { class: "grid two" },
      lineageCard(document, overview),
      contributionsCard(document, overview),
      card("Compared with another model", { note: "How far the weights moved, tensor by tensor." }, compareForm(document, overview, choice), comparePlace),
      card("Without a client", { note: "What the model would be had a client's updates never been in it: aggregated again from the stored updates." }, withoutForm(document, overview, choice), withoutPlace, contextNote()),
    ),
  );
  const turns = { other: 0, without: 0 }; // only the newest answer of each is drawn
  async function ask(part, place, draw) {
    turns[part] += 1;
    const mine = turns[part];
    const address = modelAddress(height, { other: part === "other" ? choice.other : null, without: part === "without" ? choice.without : null });
    if (!hasDocument(address)) {
      replaceContent(place, notice("info", "This export holds no such computation; `bdfl explore` on the run folder does it at once."));
      return;
    }
    replaceContent(place, element("p", { class: "muted" }, "Computing…"));
    try {
      const answer = await getJson(address, context.signal);
      if (mine === turns[part]) replaceContent(place, draw(answer));
    } catch (error) {
      if (error.name !== "AbortError" && mine === turns[part]) replaceContent(place, notice("bad", error.message));
    }
  }
  const compareNow = () => (choice.other === null ? replaceContent(comparePlace) : ask("other", comparePlace, (answer) => comparison(answer, height)));
  const withoutNow = () => (choice.without === null ? replaceContent(withoutPlace) : ask("without", withoutPlace, (answer) => withoutWords(answer, overview)));
  root.addEventListener("explorer:choose", (event) => {
    rewriteQuery({ other: choice.other, without: choice.without });
    if (event.detail === "other") compareNow();
    else withoutNow();
  });
  if (choice.other === null && ancestorsOf(document).length > 0 && hasDocument(modelAddress(height, { other: ancestorsOf(document)[0].height, without: null }))) choice.other = ancestorsOf(document)[0].height;
  const field = root.querySelector("#other-height");
  if (field && choice.other !== null) field.value = choice.other;
  await Promise.all([compareNow(), withoutNow()]);
}

/** Before the first block there is only the model that everybody begins with. */
function showUntrained(root, context) {
  const { overview } = context;
  replaceContent(
    root,
    pageHead({ title: "The untrained model", lead: "What every client begins with, named by the genesis.", next: overview.height > 0 ? ["/model/1", "1"] : null }),
    emptyState("Nobody has trained it yet", overview.height > 0 ? link("/model/1", "The first model that was trained") : "The first lineage appears here when block 1 is mined."),
  );
}

function contextNote() {
  return element("p", { class: "field-hint" }, "The chain itself does not change: this is a question, asked of its records (", element("code", {}, "bdfl chain without"), ").");
}

/** The models before this one, newest first. */
function ancestorsOf(document) {
  return document.parents.filter((ancestor) => ancestor.height < document.made_in);
}

function choose(node, what) {
  node.dispatchEvent(new CustomEvent("explorer:choose", { bubbles: true, detail: what }));
}

function compareForm(document, overview, choice) {
  const input = element("input", { type: "number", id: "other-height", min: 0, max: overview.height, step: 1, value: choice.other ?? "" });
  const changed = debounced(() => {
    const value = wholeNumber(input.value);
    if (value === null || value > overview.height || value === choice.other) return;
    choice.other = value;
    choose(input, "other");
  }, 150);
  input.addEventListener("input", changed);
  const quick = (label, height) =>
    height === null || height < 0 || height === document.height
      ? null
      : element("button", { type: "button", class: "chip", on: { click: () => {
          input.value = height;
          choice.other = height;
          choose(input, "other");
        } } }, label);
  return element(
    "div",
    { class: "form-row" },
    element("label", { class: "inline-field", for: "other-height" }, "with the model after block", input),
    element("span", { class: "chips" }, quick("the one before", document.height > 0 ? document.height - 1 : null), quick("untrained", 0), quick("newest", overview.height)),
  );
}

function withoutForm(document, overview, choice) {
  const clients = document.contributions.map((one) => one.client);
  const select = element(
    "select",
    { on: { change: (event) => {
      choice.without = event.target.value === "" ? null : Number(event.target.value);
      choose(select, "without");
    } } },
    element("option", { value: "" }, "nobody left out"),
    clients.map((client) => element("option", { value: client, selected: client === choice.without }, clientName(overview, client))),
  );
  return element("div", { class: "form-row" }, element("label", { class: "inline-field" }, "without", select));
}

function comparison(document, height) {
  const { compare } = document;
  if (compare === null) return notice("warn", "There is no such model.");
  if (compare.why) return notice("warn", compare.why);
  const most = Math.max(...compare.tensors.map((tensor) => tensor.distance), 1e-30);
  return element(
    "div",
    {},
    element(
      "p",
      { class: "say" },
      "Between the models after blocks ",
      element("b", {}, sayCount(compare.other)),
      " and ",
      element("b", {}, sayCount(height)),
      " the weights moved by ",
      element("b", {}, sayNumber(compare.distance, 4)),
      isKnown(compare.relative) ? `, ${sayPercent(compare.relative, 2)} of the norm` : "",
      isKnown(compare.accuracy) && isKnown(document.accuracy) ? `; accuracy ${sayPercent(compare.accuracy)} → ${sayPercent(document.accuracy)}.` : ".",
    ),
    table({
      caption: "Distance of every tensor",
      columns: [{ title: "Tensor" }, { title: "Shape" }, { title: "Distance", class: "bar-column" }, { title: "Norm here", isNumber: true }, { title: "Norm there", isNumber: true }],
      rows: compare.tensors.map((tensor) => [
        element("code", {}, tensor.name),
        tensor.shape.join(" × ") || "1",
        element("span", { class: "bar-cell" }, shareBar(tensor.distance / most, "accent", sayNumber(tensor.distance)), sayNumber(tensor.distance)),
        sayNumber(tensor.norm),
        sayNumber(tensor.other_norm),
      ]),
    }),
  );
}

function withoutWords(document, overview) {
  const { without } = document;
  if (without === null) return notice("warn", "No answer came.");
  const who = clientName(overview, without.client);
  if (without.why) return notice("warn", without.why);
  if (!(without.distance > 0)) return notice("info", `Without ${who} the model would be the same, bit for bit.`);
  return element(
    "div",
    {},
    element(
      "p",
      { class: "say" },
      "Without ",
      clientLink(overview, without.client),
      " the model would lie ",
      element("b", {}, sayNumber(without.distance, 4)),
      " away",
      isKnown(without.relative) ? ["; that is ", element("b", {}, sayPercent(without.relative, 2)), " of its norm"] : null,
      `. ${sayPlural(without.changed_in.length, "block")} would have had another model.`,
    ),
    without.changed_in.length
      ? element("p", { class: "height-links" }, "Changed in ", without.changed_in.slice(0, 40).map((height, place) => [place ? ", " : null, blockLink(height, sayCount(height))]), without.changed_in.length > 40 ? ` and ${sayCount(without.changed_in.length - 40)} more` : null, ".")
      : null,
  );
}

function contributionsCard(document, overview) {
  const most = Math.max(...document.contributions.map((one) => one.weight ?? 0), 1e-9);
  return card(
    "Whose work is in it",
    { wide: true, note: "The newest update of each client that entered this model or one it grew from, and its weight in the newest aggregate." },
    document.contributions.length
      ? table({
          caption: "Contributions",
          columns: [{ title: "Client" }, { title: "Weight in this model", class: "bar-column" }, { title: "Samples", isNumber: true }, { title: "Update" }, { title: "First in" }, { title: "Last in" }, { title: "Blocks with its work", isNumber: true }],
          rows: document.contributions.map((one) => [
            clientLink(overview, one.client),
            isKnown(one.weight) ? element("span", { class: "bar-cell" }, shareBar(one.weight / most, "accent", sayPercent(one.weight)), sayPercent(one.weight)) : element("span", { class: "muted" }, "through earlier models"),
            sayCount(one.samples),
            one.update ? copyable(one.update, `client ${one.client}'s update`, 10) : null,
            one.since === null ? null : blockLink(one.since),
            one.last === null ? null : blockLink(one.last),
            sayCount(one.num_blocks),
          ]),
        })
      : emptyState("Nobody has trained it yet", "It is the untrained model of the genesis."),
  );
}

// The graph: models from left to right, above each the updates it is made of, one lane for each client

function lineageCard(document, overview) {
  let numDots = 0;
  const older = ancestorsOf(document).filter((ancestor, place) => place < MOST_COLUMNS - 1 && (numDots += ancestor.clients.length) <= MOST_DOTS);
  const own = document.parents.find((ancestor) => ancestor.height === document.made_in);
  const columns = [
    ...older.reverse(),
    own ?? { height: document.made_in, digest: document.model, clients: document.contributions.filter((one) => isKnown(one.weight) && one.weight > 0).map((one) => one.client), is_stored: document.is_stored, accuracy: document.accuracy, distance: null },
  ];
  const numLeft = ancestorsOf(document).length - older.length;
  return card(
    "Lineage",
    { wide: true, note: `Every model grew from the one at its left and the updates above it; a dot is an update, the larger the more it weighs.${numLeft > 0 ? ` The newest ${columns.length} are drawn.` : ""} Arrow keys move, Enter opens.` },
    widthBox({}, (width) => lineageGraph(columns, document, overview, width)),
    element(
      "details",
      { class: "check-details" },
      element("summary", {}, "The same as a table"),
      table({
        caption: "Models it grew from, newest first",
        columns: [{ title: "Model after" }, { title: "Digest" }, { title: "Made of updates by" }, { title: "Moved by", isNumber: true }, { title: "Accuracy", isNumber: true }, { title: "Weights" }],
        rows: [...columns].reverse().map((one) => [
          one.height === 0 ? "genesis" : link(`/model/${one.height}`, `block ${sayCount(one.height)}`),
          copyable(one.digest, "the digest", 10),
          one.clients.length ? one.clients.map((client, place) => [place ? ", " : null, link(`/client/${client}`, String(client))]).flat() : "nobody",
          isKnown(one.distance) ? sayNumber(one.distance) : null,
          sayPercent(one.accuracy),
          one.is_stored ? "kept" : badge("pruned", "warn"),
        ]),
      }),
    ),
  );
}

function weightsOf(column, document, overview) {
  const isThis = column.height === document.made_in;
  const raw = column.clients.map((client) => {
    const known = isThis ? document.contributions.find((one) => one.client === client)?.weight : null;
    return known ?? overview.clients.find((one) => one.client === client)?.samples ?? 1;
  });
  const sum = raw.reduce((total, one) => total + one, 0) || 1;
  return raw.map((one) => one / sum);
}

function threadFrom(x, y, base) {
  return `M${x} ${y}C${x + 16} ${y + 8} ${x + 16} ${base - 30} ${x} ${base - 10}`;
}

function lineageGraph(columns, document, overview, room) {
  const lanes = [...new Set(columns.flatMap((column) => column.clients))].sort((one, other) => one - other);
  const laneHeight = lanes.length > 24 ? 13 : lanes.length > 12 ? 18 : 24;
  const [left, top] = [74, 10];
  const gap = Math.max(58, Math.min(112, (room - left - 24) / columns.length));
  const base = top + lanes.length * laneHeight + 34;
  const width = left + columns.length * gap + 20;
  const height = base + 52;
  const placeX = (place) => left + place * gap + gap / 2;
  const nodes = columns.map((column, place) => {
    const x = placeX(place);
    const weights = weightsOf(column, document, overview);
    const isThis = column.height === document.made_in;
    const words = `Model after ${column.height === 0 ? "the genesis" : `block ${column.height}`}: ${column.clients.length ? `updates of clients ${column.clients.join(", ")}` : "untrained"}${isKnown(column.accuracy) ? `; accuracy ${sayPercent(column.accuracy)}` : ""}${column.is_stored ? "" : "; weights pruned"}`;
    const isOpenable = column.height > 0;
    return shape(
      isOpenable ? "a" : "g",
      { role: isOpenable ? null : "img", class: `model-node${isThis ? " this" : ""}${column.is_stored ? "" : " pruned"}`, href: isOpenable ? href(`/model/${column.height}`) : null, "aria-label": words, tabindex: place === columns.length - 1 ? "0" : "-1" },
      shape("title", {}, words),
      shape("path", { class: "update-thread", d: column.clients.map((client) => threadFrom(x, top + (lanes.indexOf(client) + 0.5) * laneHeight, base)).join("") }),
      column.clients.map((client, index) => {
        const y = top + (lanes.indexOf(client) + 0.5) * laneHeight;
        const radius = Math.max(2.2, Math.min(laneHeight / 2 - 1, 11) * Math.sqrt(weights[index] / Math.max(...weights)));
        return shape("circle", { class: "update-dot", cx: x, cy: y, r: radius.toFixed(1) });
      }),
      shape("rect", { class: "model-box", x: x - 12, y: base - 12, width: 24, height: 24, rx: 6 }),
      shape("text", { class: "model-height", x, y: base + 28, "text-anchor": "middle" }, column.height === 0 ? "start" : sayCount(column.height)),
      shape("text", { class: "model-accuracy", x, y: base + 43, "text-anchor": "middle" }, isKnown(column.accuracy) ? sayPercent(column.accuracy, 0) : ""),
    );
  });
  const svg = shape(
    "svg",
    { class: "lineage", width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Models from left to right" },
    lanes.map((client, lane) => [
      shape("line", { class: "lane", x1: left - 4, x2: width, y1: top + (lane + 0.5) * laneHeight, y2: top + (lane + 0.5) * laneHeight }),
      laneHeight < 15 && lane % 2 ? null : shape("text", { class: "lane-name", x: left - 10, y: top + (lane + 0.5) * laneHeight + 4, "text-anchor": "end" }, clientName(overview, client).slice(0, 10)),
    ]),
    shape("line", { class: "model-line", x1: placeX(0), x2: placeX(columns.length - 1), y1: base, y2: base }),
    shape("text", { class: "lane-name", x: left - 10, y: base + 4, "text-anchor": "end" }, "model"),
    nodes,
  );
  const box = element("div", { class: "lineage-box", "data-keys": "" }, svg);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -columns.length, End: columns.length }[event.key];
    const at = nodes.indexOf(event.target);
    if (!step || at < 0) return;
    event.preventDefault();
    event.stopPropagation();
    const next = nodes[Math.max(0, Math.min(nodes.length - 1, at + step))];
    for (const node of nodes) node.setAttribute("tabindex", node === next ? "0" : "-1");
    next.focus();
    next.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  requestAnimationFrame(() => {
    box.scrollLeft = box.scrollWidth;
  });
  return box;
}
