/* One client: whether it takes part as often as it should, what that costs it, and what it left on the chain. */

import { ChartGroup } from "./charts.js";
import { getJson } from "./data.js";
import { badge, card, element, emptyState, notice, replaceContent, table, tile, tiles } from "./dom.js";
import { isKnown, sayCount, sayEnergy, sayFrequency, sayNumber, sayPercent, sayPlural, sayPower, saySeconds } from "./format.js";
import { blockLink, copyable, factList, inRun, pageHead, plainTree, shareBar } from "./page_parts.js";
import { go, link } from "./router.js";

const MOST_CELLS = 500;
const MOST_CHIPS = 60;
const ROUND_STATES = {
  s: ["delivered", "its update is in the block"],
  d: ["declined", "scheduled, with nothing to give"],
  m: ["missed", "scheduled, and its update never came"],
  ".": ["waited", "not scheduled"],
  r: ["rested", "resting or out of reach"],
  "-": ["absent", "no member"],
};

export async function showClient(root, route, context) {
  const number = route.client;
  const { overview } = context;
  const document = await getJson(inRun(`/client/${number}.json`), context.signal);
  const { rounds } = document;
  const numRounds = rounds.count.length ? Math.max(0, (document.until ?? overview.height) - document.since + 1) : 0;
  const place = overview.clients.findIndex((client) => client.client === number);
  const neighbour = (step) => (overview.clients[place + step] ? [`/client/${overview.clients[place + step].client}`, overview.clients[place + step].name] : null);
  const group = new ChartGroup({ signal: context.signal, isTimed: false, onPick: (round) => go(overview.chain === null ? `/what-if/${round}` : `/block/${round}`) });
  const meanShare = meanOf(rounds.energy_j.map((energy, row) => (rounds.budget_j[row] > 0 && isKnown(energy) ? energy / rounds.budget_j[row] : null)));
  replaceContent(
    root,
    pageHead({
      title: document.name,
      badges: [
        document.offences.length ? badge(sayPlural(document.offences.length, "proven offence"), "bad") : null,
        document.until === null ? null : badge(`member until block ${sayCount(document.until)}`, "warn"),
        document.since > 1 ? badge(`member since block ${sayCount(document.since)}`, "info") : null,
      ],
      lead: document.public_key ? element("span", {}, "public key ", copyable(document.public_key, "the public key", 24)) : "a client without a key: there is no chain here",
      json: inRun(`/client/${number}.json`),
      previous: neighbour(-1),
      next: neighbour(1),
    }),
    chooser(overview, number),
    tiles(
      tile("Takes part in", sayPercent(document.share), `its rate beta asks for ${sayPercent(document.rate)}`, isKnown(document.share) && document.share + 1e-9 < document.rate ? "bad" : "good"),
      tile("Updates that count", sayCount(document.num_contributions), numRounds ? `of ${sayPlural(numRounds, "round")} as a member` : null),
      tile("Missed", sayCount(document.num_missed), `${sayCount(document.num_declined)} declined`, document.num_missed ? "bad" : ""),
      overview.chain === null ? null : tile("Blocks mined", sayCount(document.mined.length), overview.height ? `${sayPercent(document.mined.length / overview.height)} of all` : null),
      tile("Energy spent", sayPercent(meanShare), "of its budget, on average"),
      overview.chain === null ? null : tile("In certificates", sayPlural(document.num_votes, "vote"), `${sayPlural(document.num_reports, "report")}; a vote that came too late is in none`),
    ),
    element(
      "div",
      { class: "grid two" },
      stripCard(document),
      rounds.round.length ? group.add(shareChart(document)) : null,
      rounds.round.length ? group.add(energyChart()) : null,
      rounds.round.length ? group.add(budgetChart()) : null,
      rounds.round.length ? group.add(delayChart()) : null,
      rounds.round.length ? group.add(queueChart()) : null,
      overview.chain === null ? limitsCard(document) : contributionsOf(document),
    ),
    overview.chain === null ? null : element("div", { class: "grid three client-rest" }, minedCard(document), offencesCard(document), limitsCard(document)),
  );
  const draw = () => {
    const numShown = rounds.round.filter((round) => round <= context.position).length;
    group.setData(rounds, numShown);
  };
  context.onPosition(draw);
  draw();
}

function meanOf(values) {
  const known = values.filter(isKnown);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

function chooser(overview, number) {
  const select = element(
    "select",
    { on: { change: (event) => go(`/client/${event.target.value}`) } },
    overview.clients.map((client) => element("option", { value: client.client, selected: client.client === number }, client.name)),
  );
  return element("div", { class: "filter-row" }, element("label", { class: "inline-field" }, "Client", select));
}

// Curves

function shareChart(document) {
  return {
    id: "client-share",
    title: "Participation",
    note: "Share of its rounds so far with an update that counts; the dashed line is what its rate beta asks for.",
    kind: "lines",
    say: (value) => sayPercent(value),
    least: 0,
    limit: { value: document.rate, label: "beta" },
    series: (data) => [{ label: "share", colour: "--curve-0", values: data.count.map((count, row) => count / Math.max(1, data.round[row] - document.since + 1)) }],
  };
}

function energyChart() {
  return {
    id: "client-energy",
    title: "Energy of each round",
    note: "What training, upload and mining took.",
    kind: "stack",
    say: sayEnergy,
    least: 0,
    series: (data) => [
      { label: "training", colour: "--training", values: data.training_j },
      { label: "upload", colour: "--upload", values: data.upload_j },
      { label: "mining", colour: "--mining", values: data.mining_j },
    ],
    readout: (data, row) => `training ${sayEnergy(data.training_j[row])} · upload ${sayEnergy(data.upload_j[row])} · mining ${sayEnergy(data.mining_j[row])} · budget ${sayEnergy(data.budget_j[row])}`,
  };
}

function budgetChart() {
  return {
    id: "client-budget",
    title: "Energy against its budget",
    note: "Share of the round's budget that was spent; never above the dashed line.",
    kind: "lines",
    say: (value) => sayPercent(value),
    least: 0,
    limit: { value: 1, label: "budget" },
    series: (data) => [{ label: "spent", colour: "--curve-1", values: data.energy_j.map((energy, row) => (data.budget_j[row] > 0 && isKnown(energy) ? energy / data.budget_j[row] : null)) }],
  };
}

function delayChart() {
  return {
    id: "client-delay",
    title: "Its delays",
    note: "Time for training and upload in the rounds it was scheduled in.",
    kind: "stack",
    say: (value) => saySeconds(value),
    least: 0,
    series: (data) => [
      { label: "training", colour: "--training", values: data.training_s },
      { label: "upload", colour: "--upload", values: data.upload_s },
    ],
    readout: (data, row) => `training ${saySeconds(data.training_s[row])} · upload ${saySeconds(data.upload_s[row])}`,
  };
}

function queueChart() {
  return {
    id: "client-queue",
    title: "Fairness queue",
    note: "How many rounds it is behind its rate.",
    kind: "lines",
    say: (value) => sayNumber(value),
    least: 0,
    series: (data) => [{ label: "queue", colour: "--curve-3", values: data.queue }],
  };
}

// What it did, round by round

function stripCard(document) {
  const { rounds } = document;
  if (rounds.state === null)
    return card("Round by round", { wide: true }, element("p", { class: "muted" }, `${sayCount(rounds.round.at(-1))} rounds in groups of ${sayCount(rounds.bucket)}: the curves show their means.`));
  const from = Math.max(0, rounds.state.length - MOST_CELLS);
  const counts = {};
  for (const sign of rounds.state) counts[sign] = (counts[sign] ?? 0) + 1;
  return card(
    "Round by round",
    { wide: true, note: from > 0 ? `The newest ${sayCount(MOST_CELLS)} rounds, from left to right.` : "From left to right; each square is a round." },
    rounds.state.length === 0
      ? emptyState("No round yet", "The first appears here when its block is mined.")
      : element(
          "div",
          { class: "state-strip", role: "img", "aria-label": Object.entries(counts).map(([sign, count]) => `${sayPlural(count, "round")} ${ROUND_STATES[sign]?.[0] ?? sign}`).join(", ") },
          [...rounds.state.slice(from)].map((sign, place) => element("span", { class: `state-cell ${ROUND_STATES[sign]?.[0] ?? ""}`, title: `round ${rounds.round[from + place]}: ${ROUND_STATES[sign]?.[1] ?? sign}` })),
        ),
    element(
      "ul",
      { class: "part-legend" },
      Object.entries(ROUND_STATES)
        .filter(([sign]) => counts[sign])
        .map(([sign, [name, words]]) => element("li", {}, element("span", { class: `state-cell ${name}`, "aria-hidden": "true" }), `${words}: ${sayCount(counts[sign])}`)),
    ),
  );
}

function contributionsOf(document) {
  const most = Math.max(...document.contributions.map((one) => one.weight ?? 0), 1e-9);
  const withNorm = document.contributions.some((one) => isKnown(one.update_norm));
  return card(
    "Contribution per block",
    { class: "contributions", note: `How much of each block's model its update is.${document.num_contributions > document.contributions.length ? ` The newest ${sayCount(document.contributions.length)} of ${sayCount(document.num_contributions)}.` : ""}` },
    document.contributions.length
      ? table({
          caption: "Contributions, newest first",
          columns: [{ title: "Block" }, { title: "Weight in the model", class: "bar-column" }, ...(withNorm ? [{ title: "Update's norm", isNumber: true }] : []), { title: "Lineage" }],
          rows: document.contributions.map((one) => [
            blockLink(one.height),
            isKnown(one.weight) ? element("span", { class: "bar-cell" }, shareBar(one.weight / most, "accent", sayPercent(one.weight)), sayPercent(one.weight)) : null,
            ...(withNorm ? [sayNumber(one.update_norm)] : []),
            link(`/model/${one.height}?without=${document.client}`, "without it", { "aria-label": `The model of block ${one.height} without ${document.name}` }),
          ]),
        })
      : emptyState("Nothing yet", "No update of this client is in any model."),
  );
}

function minedCard(document) {
  const newest = document.mined.slice(-MOST_CHIPS).reverse();
  return card(
    "Blocks it mined",
    { note: document.mined.length > newest.length ? `The newest ${sayCount(newest.length)} of ${sayCount(document.mined.length)}.` : null },
    newest.length ? element("ul", { class: "chips" }, newest.map((height) => element("li", {}, link(`/block/${height}`, sayCount(height), { class: "chip", "aria-label": `Block ${height}` })))) : emptyState("None yet", "Others were faster so far."),
  );
}

function offencesCard(document) {
  return card(
    "Offences",
    { note: "Only what nobody else can have made counts: two signed statements that exclude each other, or false work." },
    document.offences.length
      ? document.offences.map((offence) =>
          element("div", { class: "entry" }, element("p", {}, badge(offence.kind, "bad"), " ", offence.sentence, " ", blockLink(offence.height)), plainTree("The evidence itself", offence.evidence)),
        )
      : notice("good", "None is proven on this chain."),
  );
}

function limitsCard(document) {
  const known = (value, say) => (isKnown(value) ? say(value) : null);
  const cap = (value, say) => (isKnown(value) ? say(value) : "no cap");
  return card(
    "What it brings",
    { note: "Fixed when it became a member." },
    factList([
      ["Samples", known(document.samples, sayCount)],
      ["Participation rate beta", sayPercent(document.rate)],
      ["Cycles to train a round", known(document.cycles, (value) => sayNumber(value))],
      ["Energy coefficient", known(document.capacitance, (value) => `${sayNumber(value)} W s³`)],
      ["Radio power", known(document.power_w, sayPower)],
      ["Highest radio power", known(document.power_max_w, sayPower)],
      ["Model on the air", known(document.model_bits, (value) => `${sayNumber(value / 1e6)} Mbit`)],
      ["Highest processor frequency", cap(document.cpu_max_hz, sayFrequency)],
      ["Highest mining frequency", cap(document.mining_max_hz, sayFrequency)],
      ...(isKnown(document.epsilon) ? [["Epsilon spent", sayNumber(document.epsilon)]] : []),
      ["Member", `since block ${sayCount(document.since)}${document.until === null ? "" : ` until block ${sayCount(document.until)}`}`],
    ]),
  );
}
