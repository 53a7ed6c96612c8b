/* Two or more runs side by side: their numbers, their curves over one axis, and the differences round by round. */

import { curveColour } from "./charts.js";
import { getJson } from "./data.js";
import { card, element, emptyState, replaceContent, table, tabs } from "./dom.js";
import { isKnown, sayCount, sayNumber, sayPercent, sayPlural, saySeconds, sayUnit } from "./format.js";
import { pageHead } from "./page_parts.js";
import { forestFigure, planeFigure } from "./plane.js";
import { link } from "./router.js";

const COMPARED_METRICS = {
  accuracy: ["Accuracy", "higher is better"],
  loss: ["Loss", "lower is better"],
  delay_s: ["Delay of a round", "lower is better"],
  mining_s: ["Mining time", "lower is better"],
  mean_queue: ["Mean queue", "lower is fairer"],
};

function metricName(metric) {
  return COMPARED_METRICS[metric]?.[0] ?? metric.replaceAll("_", " ");
}

function sayMetric(metric, unit) {
  if (unit === "s") return (value) => (value < 0 ? `−${saySeconds(-value)}` : saySeconds(value));
  if (metric === "accuracy") return (value) => `${value < 0 ? "−" : ""}${sayNumber(100 * Math.abs(value))} points`;
  if (unit === "%") return (value) => `${sayNumber(value)} %`;
  if (unit === "J" || unit === "Hz" || unit === "W") return (value) => sayUnit(value, unit);
  return (value) => (value < 0 ? `−${sayNumber(-value)}` : sayNumber(value));
}

function runLabel(run) {
  return `${run.run + 1}. ${run.name}`;
}

export async function showCompare(root, route, context) {
  replaceContent(root, pageHead({ title: "Compare", lead: "Reading the runs…", json: "/compare.json" }));
  const document = await getJson("/compare.json", context.signal);
  const { runs } = document;
  replaceContent(
    root,
    pageHead({
      title: runs.length > 1 ? `Compare ${sayPlural(runs.length, "run")}` : "Compare",
      lead: runs.length > 1 ? "Paired by round number: what is the same in both, such as the draw of the channels, cancels out." : "One run is open.",
      json: "/compare.json",
    }),
    runs.length > 1
      ? null
      : emptyState("Open a second run to compare", "Name two or more folders: ", element("code", {}, "bdfl explore runs/first runs/second")),
    element("div", { class: "grid two" }, summaryCard(document), ...curveCards(document), ...(runs.length > 1 ? forestCards(document) : [])),
  );
}

function summaryCard(document) {
  const { runs } = document;
  const best = (pick, isLow) => {
    const values = runs.map(pick).filter(isKnown);
    return new Set(values).size > 1 ? (isLow ? Math.min(...values) : Math.max(...values)) : null;
  };
  const strong = (value, say, isBest) => (isBest && isKnown(value) ? element("b", { class: "best-value" }, say(value)) : say(value));
  const accuracy = best((run) => run.summary.accuracy, false);
  const delay = best((run) => run.summary.mean_delay_s, true);
  const bestAccuracy = best((run) => run.summary.best_accuracy, false);
  const isAsLong = runs.every((run) => run.num_rounds === runs[0].num_rounds);
  const total = isAsLong ? best((run) => run.summary.total_s, true) : null;
  const shortfall = best((run) => run.summary.worst_shortfall, true);
  return card(
    "In numbers",
    { wide: true, note: runs.length > 1 ? "The best accuracy, delay and shortfall are bold." : null },
    table({
      caption: "Runs and their summaries",
      columns: [{ title: "Run" }, { title: "Scheduler" }, { title: "V", isNumber: true }, { title: "Rounds", isNumber: true }, { title: "Clients", isNumber: true }, { title: "Accuracy", isNumber: true }, { title: "Best accuracy", isNumber: true }, { title: "Mean delay", isNumber: true }, { title: "Whole run", isNumber: true }, { title: "Worst shortfall", isNumber: true }, { title: "Energy of budget", isNumber: true }],
      rows: runs.map((run, place) => [
        element("span", { class: "run-name" }, element("span", { class: "swatch", style: { background: `var(${curveColour(place)})` }, "aria-hidden": "true" }), link(`/?run=${run.run}`, runLabel(run))),
        run.scheduler,
        sayNumber(run.tradeoff),
        sayCount(run.num_rounds),
        sayCount(run.num_clients),
        strong(run.summary.accuracy, (value) => sayPercent(value), run.summary.accuracy === accuracy),
        strong(run.summary.best_accuracy, (value) => `${sayPercent(value)}${run.summary.best_round === null ? "" : ` in ${sayCount(run.summary.best_round)}`}`, run.summary.best_accuracy === bestAccuracy),
        strong(run.summary.mean_delay_s, (value) => saySeconds(value), run.summary.mean_delay_s === delay),
        strong(run.summary.total_s, (value) => saySeconds(value), run.summary.total_s === total),
        strong(run.summary.worst_shortfall, (value) => sayPercent(value), run.summary.worst_shortfall === shortfall),
        sayPercent(run.summary.energy_use),
      ]),
    }),
  );
}

function curveCards(document) {
  const draws = [
    ["Accuracy", "Of the global model on the test data.", "accuracy", (value) => sayPercent(value), false],
    ["Delay of a round", "Means where rounds are drawn together.", "delay_s", (value) => saySeconds(value), true],
    ["Mean queue", "How far clients are behind their rates, on average.", "mean_queue", (value) => sayNumber(value), true],
  ];
  return draws.map(([title, note, column, sayY, withZeroY]) => {
    const place = element("div", {});
    const draw = (axis) =>
      replaceContent(
        place,
        planeFigure({
          label: `${title} of ${sayPlural(document.runs.length, "run")} over ${axis === "time" ? "time" : "rounds"}`,
          xTitle: axis === "time" ? "seconds since the beginning" : "round",
          yTitle: "",
          sayX: axis === "time" ? (value) => saySeconds(value) : sayCount,
          sayY,
          withZeroY,
          height: 250,
          series: document.curves.map((curve, number) => ({
            name: runLabel(document.runs.find((run) => run.run === curve.run) ?? { run: curve.run, name: "" }),
            colour: `var(${curveColour(number)})`,
            isDashed: number % 2 === 1, // so that curves which fall together show both
            points: curve.round.map((round, row) => ({ x: axis === "time" ? curve.time_s[row] : round, y: curve[column][row] ?? NaN })),
          })),
        }),
      );
    draw("rounds");
    return card(title, { note, wide: column === "accuracy", tools: [tabs(`Axis of ${title}`, [{ name: "rounds", title: "rounds" }, { name: "time", title: "seconds" }], "rounds", draw)] }, place);
  });
}

function forestCards(document) {
  const metrics = [...new Set(document.paired.map((pair) => pair.metric))];
  return metrics.map((metric) => {
    const pairs = document.paired.filter((pair) => pair.metric === metric && isKnown(pair.mean));
    const { unit } = document.paired.find((pair) => pair.metric === metric);
    const say = sayMetric(metric, unit);
    const name = (number) => document.runs.find((run) => run.run === number)?.scheduler ?? `run ${number + 1}`;
    const rows = pairs.map((pair) => ({ name: `${pair.a + 1}. ${name(pair.a)} − ${pair.b + 1}. ${name(pair.b)}`, mean: pair.mean, halfWidth: pair.half_width, num: pair.n }));
    const hint = COMPARED_METRICS[metric]?.[1];
    return card(
      `Paired difference: ${metricName(metric).toLowerCase()}`,
      { note: `Mean over the rounds that both have, with its 95 % interval; where that crosses zero the runs may be equal${hint ? ` (${hint})` : ""}.` },
      rows.length
        ? [
            forestFigure({ label: rows.map((row) => `${row.name}: ${say(row.mean)}${row.halfWidth === null ? "" : ` plus or minus ${say(row.halfWidth)}`}`).join("; "), unit: unit === "s" ? "" : unit || "", rows, say }),
            element("p", { class: "field-hint" }, `${[...new Set(rows.map((row) => sayPlural(row.num, "round")))].join(", ")} compared.`),
          ]
        : element("p", { class: "muted" }, "These runs have no rounds in common."),
    );
  });
}
