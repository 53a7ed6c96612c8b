/* What-if: a round's problem, what every scheduler would do with it, and what changes when the problem does. */

import { curveColour } from "./charts.js";
import { DataError, getJson, hasDocument, isExported } from "./data.js";
import { badge, button, card, element, emptyState, notice, replaceContent, table } from "./dom.js";
import { isKnown, sayCount, sayDecibel, sayEnergy, sayFrequency, sayNumber, sayPercent, sayPlural, saySeconds } from "./format.js";
import { clientLink, clientName, debounced, inRun, legendOf, pageHead, shareBar, stackedBar } from "./page_parts.js";
import { planeFigure } from "./plane.js";
import { rewriteQuery } from "./router.js";

const WHAT_IF_WAIT_MS = 120;
const FRONTIER_WAIT_MS = 2000;
const SLIDER_STEPS = 400;

/** How far a slider goes from what is recorded: by a factor, of decibels by a sum. The number field takes all. */
const WHAT_IF_SPANS = { tradeoff: 1000, budget_scale: 30, energy_budget_j: 100, bandwidth_hz: 100, work_scale: 30, gain_db: 40 };

const WHAT_IF_CONTROLS = [
  ["tradeoff", "V, delay against fairness", "Small V serves whoever waited longest; large V serves whoever is fast."],
  ["budget_scale", "Energy budgets, scaled", "All budgets of the round times this."],
  ["energy_budget_j", "Energy budget, the same for all", "In place of what the clients reported."],
  ["bandwidth_hz", "Bandwidth", "Of each uplink."],
  ["work_scale", "Mining work", "Cycles a block takes, times this."],
  ["gain_db", "Channel of", "One client's channel gain."],
];

export async function showWhatIf(root, route, context) {
  const { overview } = context;
  const settings = {};
  for (const [name] of WHAT_IF_CONTROLS) settings[name] = numberIn(route.query.get(name));
  settings.client = numberIn(route.query.get("client"));
  if (settings.gain_db !== null && settings.client === null) settings.client = overview.clients[0]?.client ?? 0;
  let results = null;
  let takeRecorded = () => {};
  let asRecorded = null; // the same round without changes
  const resultPlace = element("div", { class: "what-if-results", "aria-live": "off" });
  const announce = element("p", { class: "what-if-now", role: "status" });
  const controlPlace = element("form", { class: "card what-if-controls", "aria-label": "The round's problem", on: { submit: (event) => event.preventDefault() } });
  replaceContent(root, pageHead({ title: "What if", lead: "Reading the round…" }), element("div", { class: "what-if" }, controlPlace, resultPlace));

  function address() {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(settings)) if (value !== null && (name !== "client" || settings.gain_db !== null)) query.set(name, String(value));
    const text = query.toString();
    return inRun(`${route.height === null ? "/what-if.json" : `/what-if/${route.height}.json`}${text ? `?${text}` : ""}`);
  }

  // One question at a time, or a slow answer would be followed by all that were asked meanwhile. An answer to a question
  // that is not the newest is dropped.
  let isAsking = false;
  let isOutdated = false;

  async function ask() {
    resultPlace.setAttribute("aria-busy", "true");
    try {
      return await getJson(address(), context.signal);
    } finally {
      resultPlace.removeAttribute("aria-busy");
    }
  }

  async function askAgain() {
    if (isAsking) {
      isOutdated = true;
      return;
    }
    isAsking = true;
    do {
      isOutdated = false;
      try {
        const found = await ask();
        if (!isOutdated && !context.signal.aborted) drawAll(found);
      } catch (error) {
        if (error.name === "AbortError") return;
        if (!isOutdated) replaceContent(resultPlace, notice("bad", error.message));
      }
    } while (isOutdated);
    isAsking = false;
  }

  function drawAll(document) {
    results = document;
    replaceContent(resultPlace, resultCards(document, overview, asRecorded ?? document));
    const best = document.choices.filter((choice) => isKnown(choice.objective)).sort((one, other) => one.objective - other.objective)[0];
    const chosen = best && best.selected.length > 12 ? sayPlural(best.selected.length, "client") : `clients ${best?.selected.join(", ") || "none"}`;
    announce.textContent = best ? `Best now: ${best.scheduler} with ${chosen}, ${saySeconds(best.delay_s)}.` : "No scheduler finds a feasible choice.";
  }

  const update = debounced(() => {
    rewriteQuery({ ...settings, client: settings.gain_db === null ? null : settings.client });
    askAgain();
  }, WHAT_IF_WAIT_MS);

  let document;
  try {
    if (!hasDocument(address())) throw new DataError("This export holds no what-if page for this round: `bdfl explore` on the run folder has all of them.", 404);
    document = await ask();
  } catch (error) {
    if (!WHAT_IF_CONTROLS.some(([name]) => settings[name] !== null)) throw error;
    for (const name of Object.keys(settings)) settings[name] = null; // an old or hand-made address
    document = await ask();
    replaceContent(announce, error.message);
  }
  asRecorded = document;
  if (hasChanges(document)) {
    const { height } = document;
    getJson(inRun(`/what-if/${height}.json`), context.signal).then(
      (found) => {
        asRecorded = found;
        takeRecorded();
        if (results) drawAll(results);
      },
      () => {},
    );
  }
  const { height } = document;
  root.firstChild.replaceWith(
    pageHead({
      title: `What if: round ${sayCount(height)}`,
      badges: [document.is_next ? badge("not played yet", "info") : null],
      lead: isExported() ? "What every scheduler would choose in this round, and what it costs." : "Change the round's problem and see at once what every scheduler would choose, and what it costs. Nothing here changes the chain.",
      json: address(),
      previous: height > 1 ? [`/what-if/${height - 1}`, `round ${sayCount(height - 1)}`] : null,
      next: document.is_next ? null : [`/what-if/${height + 1}`, `round ${sayCount(height + 1)}`],
    }),
  );
  const setting = (name, value) => {
    settings[name] = value;
    update();
  };
  if (isExported()) replaceContent(controlPlace, element("h2", {}, "The round's problem"), notice("info", "In an export the problem stays as recorded; `bdfl explore` on the run folder lets you change it."), problemFacts(document));
  else takeRecorded = drawControls(controlPlace, document, settings, overview, setting, () => asRecorded);
  controlPlace.append(announce);
  drawAll(document);
  showRunFrontier(root, context);
}

function numberIn(text) {
  if (text === null || text.trim() === "") return null;
  const value = Number(text);
  return Number.isFinite(value) ? value : null;
}

// Controls: a slider and a number field that stay together

/** Draws them; what comes back takes over the recorded channel once `recordedNow` knows it. */
function drawControls(place, document, settings, overview, setting, recordedNow) {
  let takeRecorded = () => {};
  const limits = new Map(document.limits.map((limit) => [limit.name, limit]));
  const resets = [];
  const controls = WHAT_IF_CONTROLS.filter(([name]) => limits.has(name)).map(([name, label, hint]) => {
    const control = dial({ name, label, hint, limit: limits.get(name), value: settings[name], onChange: (value) => setting(name, value) });
    resets.push(control.reset);
    if (name === "gain_db") {
      const select = element(
        "select",
        { "aria-label": "Whose channel", on: { change: (event) => {
          settings.client = Number(event.target.value);
          control.reset();
          control.setRecorded(gainOf(recordedNow(), settings.client) ?? limits.get(name).value);
          if (settings.gain_db !== null) setting(name, null);
        } } },
        document.problem.clients.map((client) => element("option", { value: client.client, selected: client.client === (settings.client ?? document.problem.clients[0]?.client) }, clientName(overview, client.client))),
      );
      settings.client ??= document.problem.clients[0]?.client ?? null;
      takeRecorded = () => control.setRecorded(gainOf(recordedNow(), settings.client) ?? limits.get(name).value);
      takeRecorded();
      control.node.querySelector(".dial-label").append(" ", select);
    }
    return control.node;
  });
  replaceContent(
    place,
    element(
      "div",
      { class: "card-head" },
      element("div", {}, element("h2", {}, "The round's problem"), element("p", { class: "card-note" }, "As recorded until you move something.")),
      button("Reset all", () => {
        for (const name of Object.keys(settings)) if (name !== "client") settings[name] = null;
        for (const reset of resets) reset();
        setting("tradeoff", null);
      }, { id: "what-if-reset" }),
    ),
    controls,
    problemFacts(document),
  );
  return () => takeRecorded();
}

function gainOf(document, number) {
  return document.problem.clients.find((client) => client.client === number)?.gain_db ?? null;
}

function sayWithUnit(value, unit) {
  if (unit === "Hz") return sayFrequency(value);
  if (unit === "J") return sayEnergy(value);
  if (unit === "dB") return sayDecibel(value);
  return unit ? `${sayNumber(value)} ${unit}` : sayNumber(value);
}

/** A slider with a number field; log steps where the range spans more than a factor of 20. */
function dial({ name, label, hint, limit, value, onChange }) {
  const { least, most, unit } = limit;
  let recorded = limit.value;
  const isLog = unit !== "dB";
  const ends = () => {
    const span = WHAT_IF_SPANS[name];
    const [low, high] = isLog ? [recorded / span, recorded * span] : [recorded - span, recorded + span];
    return [Math.max(least, low), Math.min(most, high)];
  };
  const toStep = (one) => {
    const [low, high] = ends();
    const share = isLog ? Math.log(one / low) / Math.log(high / low) : (one - low) / (high - low);
    return Math.round(Math.max(0, Math.min(1, share)) * SLIDER_STEPS);
  };
  const fromStep = (step) => {
    const [low, high] = ends();
    const raw = isLog ? low * (high / low) ** (step / SLIDER_STEPS) : low + ((high - low) * step) / SLIDER_STEPS;
    return Number(raw.toPrecision(4));
  };
  const said = element("span", { class: "dial-said" });
  const range = element("input", { type: "range", min: 0, max: SLIDER_STEPS, step: 1, id: `dial-${name}`, "data-setting": name, "aria-label": label });
  const field = element("input", { type: "number", step: "any", min: least, max: most, "aria-label": `${label}${unit ? ` in ${unit}` : ""}`, "data-number": name });
  const undo = button("↺", () => {
    reset();
    onChange(null);
  }, { class: "button quiet dial-undo", "aria-label": `${label}: as recorded`, title: "As recorded" });
  let chosenValue = value; // null: as recorded
  function show(current, isChanged, withField) {
    chosenValue = isChanged ? current : null;
    const shown = current ?? recorded;
    range.value = toStep(shown);
    range.setAttribute("aria-valuetext", sayWithUnit(shown, unit));
    if (withField) field.value = Number(shown.toPrecision(6));
    said.textContent = isChanged ? `${sayWithUnit(shown, unit)}, recorded ${sayWithUnit(recorded, unit)}` : sayWithUnit(shown, unit);
    undo.disabled = !isChanged;
    node.classList.toggle("changed", isChanged);
    field.setAttribute("aria-invalid", "false");
  }
  function reset() {
    show(null, false, true);
  }
  const node = element("div", { class: "dial" }, element("div", { class: "dial-label" }, element("label", { for: `dial-${name}` }, label)), undo, range, field, element("p", { class: "field-hint" }, said, ` · ${hint}`));
  range.addEventListener("input", () => {
    const chosen = fromStep(Number(range.value));
    show(chosen, true, true);
    onChange(chosen);
  });
  field.addEventListener("input", () => {
    const chosen = numberIn(field.value);
    if (chosen === null || chosen < least || chosen > most) {
      field.setAttribute("aria-invalid", "true");
      said.textContent = `from ${sayWithUnit(least, unit)} to ${sayWithUnit(most, unit)}`;
      return;
    }
    show(chosen, true, false);
    onChange(chosen);
  });
  show(value, value !== null, true);
  return {
    node,
    reset,
    setRecorded: (next) => {
      recorded = next;
      show(chosenValue, chosenValue !== null, true);
    },
  };
}

function problemFacts(document) {
  const { problem } = document;
  return element(
    "p",
    { class: "field-hint" },
    `Round ${sayCount(problem.round)} asks for at least ${sayPlural(problem.min_clients, "client")}; a block takes ${sayNumber(problem.work_cycles)} cycles of work; ${sayPlural(problem.clients.filter((client) => client.is_reachable).length, "client")} of ${sayCount(problem.clients.length)} can be reached.`,
  );
}

// Results

function hasChanges(document) {
  return Object.entries(document.settings).some(([name, value]) => name !== "client" && value !== null);
}

function resultCards(document, overview, asRecorded) {
  const isChanged = hasChanges(document);
  return [
    element(
      "div",
      { class: "card certificate" },
      element("h2", {}, "How good is the best of them?"),
      element("p", { class: "say" }, document.certificate.text),
    ),
    costTable(document, isChanged),
    matrixCard(document, overview),
    energyCard(document, overview, asRecorded),
    frontierCard(document),
  ];
}

/** The recorded decision first, then what schedulers choose now. */
function columnsOf(document) {
  return [...(document.recorded ? [{ ...document.recorded, isRecorded: true }] : []), ...document.choices];
}

function choiceName(choice) {
  return choice.isRecorded ? "on the chain" : choice.scheduler;
}

function costTable(document, isChanged) {
  const columns = columnsOf(document);
  const best = Math.min(...document.choices.map((choice) => choice.objective).filter(isKnown));
  const most = Math.max(...columns.map((choice) => choice.delay_s).filter(isKnown), 1e-12);
  return card(
    "What it costs",
    { note: isChanged && document.recorded ? "The first row is what the chain recorded, for the problem as it was." : "V · delay − queues served is what every scheduler tries to make small." },
    table({
      caption: "Cost of every scheduler's choice",
      columns: [{ title: "Scheduler" }, { title: "Delay of the round", class: "bar-column wide-bar" }, { title: "Delay", isNumber: true }, { title: "Objective", isNumber: true }, { title: "Above best", isNumber: true }, { title: "Gap", isNumber: true }, { title: "Clients", isNumber: true }, { title: "Clients against the chain" }, { title: "Took", isNumber: true }],
      rows: columns.map((choice) => [
        element("span", { class: "scheduler-name" }, element("b", {}, choiceName(choice)), choice.objective === best ? badge("best", "good") : null),
        choice.reason
          ? element("span", { class: "muted" }, choice.reason)
          : stackedBar(
              [
                { value: choice.training_s, tone: "training", label: `training ${saySeconds(choice.training_s)}` },
                { value: choice.upload_s, tone: "upload", label: `upload ${saySeconds(choice.upload_s)}` },
                { value: choice.mining_s, tone: "mining", label: `mining ${saySeconds(choice.mining_s)}` },
                { value: Math.max(0, choice.delay_s - choice.training_s - choice.upload_s - choice.mining_s), tone: "rest", label: "overhead" },
              ],
              most,
              `training ${saySeconds(choice.training_s)}, upload ${saySeconds(choice.upload_s)}, mining ${saySeconds(choice.mining_s)}`,
            ),
        choice.reason ? null : saySeconds(choice.delay_s, 4),
        sayNumber(choice.objective, 5),
        isKnown(choice.objective) && Number.isFinite(best) && !choice.isRecorded ? (choice.objective - best <= 1e-9 * Math.abs(best) ? "0" : `+${sayNumber(choice.objective - best)}`) : null,
        isKnown(choice.gap) ? (choice.gap < 1e-8 ? "none" : sayPercent(choice.gap, 2)) : null,
        sayCount(choice.selected.length),
        differenceTo(document.recorded, choice),
        choice.isRecorded ? null : saySeconds(choice.seconds),
      ]),
      rowClass: (index) => (columns[index].isRecorded ? "recorded" : null),
    }),
    legendOf([
      ["training", "training of the slowest"],
      ["upload", "its upload"],
      ["mining", "mining"],
    ]),
  );
}

function differenceTo(recorded, choice) {
  if (!recorded || choice.isRecorded) return null;
  const added = choice.selected.filter((client) => !recorded.selected.includes(client));
  const left = recorded.selected.filter((client) => !choice.selected.includes(client));
  if (!added.length && !left.length) return element("span", { class: "muted" }, "the same clients");
  return element("span", {}, added.length ? element("span", { class: "added" }, `with ${added.join(", ")}`) : null, added.length && left.length ? "  " : null, left.length ? element("span", { class: "left-out" }, `without ${left.join(", ")}`) : null);
}

function matrixCard(document, overview) {
  const columns = columnsOf(document);
  const most = Math.max(...document.problem.clients.map((client) => client.queue), 1e-9);
  return card(
    "Who would be chosen",
    { note: "A filled square: the client trains. Outlined in colour where that differs from the chain." },
    table({
      caption: "Clients and the schedulers that choose them",
      columns: [{ title: "Client" }, ...columns.map((choice) => ({ title: choiceName(choice), class: "choice-column" })), { title: "Queue", class: "bar-column" }, { title: "Channel", isNumber: true }, { title: "Budget", isNumber: true }],
      rows: document.problem.clients.map((client) => [
        element("span", {}, clientLink(overview, client.client), client.is_reachable ? null : badge("out of reach", "warn")),
        ...columns.map((choice) => choiceCell(document.recorded, choice, client.client)),
        element("span", { class: "bar-cell" }, shareBar(client.queue / most, "queue", sayNumber(client.queue)), sayNumber(client.queue)),
        sayDecibel(client.gain_db),
        sayEnergy(client.energy_budget_j),
      ]),
      rowClass: (index) => (document.problem.clients[index].client === document.settings.client && document.settings.gain_db !== null ? "chosen" : null),
    }),
  );
}

function choiceCell(recorded, choice, client) {
  const isChosen = choice.selected.includes(client);
  const wasChosen = recorded ? recorded.selected.includes(client) : isChosen;
  const words = `${isChosen ? "trains" : "does not train"}${isChosen === wasChosen ? "" : isChosen ? ", new" : ", no more"}`;
  return element("span", { class: `choice-cell ${isChosen ? "yes" : "no"} ${isChosen === wasChosen ? "" : "other"}`.trim(), title: words }, element("span", { class: "out-of-sight" }, words));
}

function energyCard(document, overview, asRecorded) {
  const columns = columnsOf(document);
  const budgetOf = (choice, client) => (choice.isRecorded ? (asRecorded.problem.clients.find((one) => one.client === client.client) ?? client) : client).energy_budget_j;
  return card(
    "Energy against budget",
    { note: "Training, upload and mining together, in per cent of what the client may spend." },
    table({
      caption: "Share of the energy budget that every choice takes",
      columns: [{ title: "Client" }, { title: "Budget", isNumber: true }, ...columns.map((choice) => ({ title: choiceName(choice), class: "bar-column narrow-bar" }))],
      rows: document.problem.clients.map((client) => [
        clientLink(overview, client.client),
        sayEnergy(client.energy_budget_j),
        ...columns.map((choice) => {
          const energy = choice.energy_j[client.client] ?? null;
          const budget = budgetOf(choice, client);
          const share = budget > 0 && isKnown(energy) ? energy / budget : null;
          if (share === null || energy === 0) return element("span", { class: "muted" }, "0");
          return element("span", { class: "bar-cell" }, shareBar(share / 1.1, share > 1.000001 ? "bad" : "accent", sayPercent(share), 1 / 1.1), sayPercent(share, 0));
        }),
      ]),
    }),
  );
}

function frontierCard(document) {
  const names = [...new Set(document.frontier.map((point) => point.scheduler))];
  const series = names.map((name, place) => ({
    name,
    colour: `var(${curveColour(place)})`,
    withPoints: true,
    points: document.frontier
      .filter((point) => point.scheduler === name)
      .map((point) => ({ x: point.delay_s, y: point.served_queue, isMarked: isNearly(point.tradeoff, document.problem.tradeoff), title: `${name}, V = ${sayNumber(point.tradeoff)}: ${saySeconds(point.delay_s)}, serves ${sayNumber(point.served_queue)}, ${sayPlural(point.num_selected, "client")}` }))
      .sort((one, other) => one.x - other.x),
  }));
  return card(
    "Delay against fairness, this round",
    { note: "Each point is what a scheduler would choose at one V: how long the round takes, and how much waiting it works off. The large points are at the V that is set." },
    planeFigure({ label: `Delay against queues served for ${names.join(", ")}`, xTitle: "delay of the round", yTitle: "queues served", series, sayX: (value) => saySeconds(value), withZeroY: true }),
    element(
      "details",
      { class: "check-details" },
      element("summary", {}, "The same as a table"),
      table({
        caption: "Frontier",
        columns: [{ title: "Scheduler" }, { title: "V", isNumber: true }, { title: "Delay", isNumber: true }, { title: "Queues served", isNumber: true }, { title: "Clients", isNumber: true }],
        rows: document.frontier.map((point) => [point.scheduler, sayNumber(point.tradeoff), saySeconds(point.delay_s), sayNumber(point.served_queue), sayCount(point.num_selected)]),
      }),
    ),
  );
}

function isNearly(one, other) {
  return Math.abs(one - other) <= 1e-6 * Math.max(Math.abs(one), Math.abs(other));
}

// Whole runs over V

/** Mean delay against the worst shortfall of whole runs; computed by the server in the background. */
function showRunFrontier(root, context) {
  const place = element("div", {}, element("p", { class: "muted" }, "Asking…"));
  const box = card("Delay against fairness, whole runs", { class: "run-frontier", note: "Whole runs of this scenario at different V: mean delay of a round against how far the worst-served client fell short of its rate." }, place);
  const offer = element("div", { class: "walk-offer" }, button("Play whole runs at different V", () => {
    replaceContent(place, element("p", { class: "muted" }, "Playing runs…"));
    poll();
  }));
  if (isExported()) poll();
  else replaceContent(place, offer, element("p", { class: "field-hint" }, "Takes a while the first time: the server simulates the scenario with every scheduler."));
  root.append(box);
  let timer = 0;
  context.signal.addEventListener("abort", () => clearTimeout(timer), { once: true });
  async function poll() {
    try {
      const document = await getJson(inRun("/frontier.json"), context.signal);
      if (document.state === "computing") {
        replaceContent(place, element("p", { class: "muted", role: "status" }, "Playing runs… ", element("progress", {})));
        timer = setTimeout(poll, FRONTIER_WAIT_MS);
      } else replaceContent(place, document.state === "done" ? runFrontier(document) : emptyState("No frontier", document.why ?? "It could not be computed."));
    } catch (error) {
      if (error.name !== "AbortError") replaceContent(place, notice("warn", error.message));
    }
  }
}

function runFrontier(document) {
  const names = [...new Set(document.points.map((point) => point.scheduler))];
  return element(
    "div",
    {},
    planeFigure({
      label: `Mean delay against worst shortfall over ${document.rounds} rounds`,
      xTitle: "mean delay of a round",
      yTitle: "worst shortfall",
      sayX: (value) => saySeconds(value),
      sayY: (value) => sayPercent(value),
      withZeroY: true,
      series: names.map((name, place) => ({
        name,
        colour: `var(${curveColour(place)})`,
        withPoints: true,
        points: document.points.filter((point) => point.scheduler === name).map((point) => ({ x: point.delay_s, y: point.shortfall, title: `${name}, V = ${sayNumber(point.tradeoff)}: ${saySeconds(point.delay_s)} ± ${saySeconds(point.delay_half_width_s)}, shortfall ${sayPercent(point.shortfall)}` })),
      })),
    }),
    table({
      caption: "Whole runs over V",
      columns: [{ title: "Scheduler" }, { title: "V", isNumber: true }, { title: "Mean delay", isNumber: true }, { title: "Worst shortfall", isNumber: true }],
      rows: document.points.map((point) => [
        point.scheduler,
        sayNumber(point.tradeoff),
        `${saySeconds(point.delay_s)}${isKnown(point.delay_half_width_s) ? ` ± ${saySeconds(point.delay_half_width_s)}` : ""}`,
        `${sayPercent(point.shortfall)}${isKnown(point.shortfall_half_width) ? ` ± ${sayPercent(point.shortfall_half_width)}` : ""}`,
      ]),
    }),
    element("p", { class: "field-hint" }, isKnown(document.rounds) ? `Over ${sayPlural(document.rounds, "round")}; half widths of 95 % intervals.` : ""),
  );
}
