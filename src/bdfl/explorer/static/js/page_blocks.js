/* All blocks in a table, newest first, 50 at a time; those of one proposer or with something special on demand. */

import { getJson, isExported } from "./data.js";
import { badge, button, element, emptyState, hashText, replaceContent, table } from "./dom.js";
import { sayAge, sayCount, sayNumber, sayPercent, sayPlural, saySeconds, sayUtc } from "./format.js";
import { clientLink, clientName, inRun, pageHead } from "./page_parts.js";
import { link, rewriteQuery } from "./router.js";
import { FLAG } from "./rounds.js";

const BLOCKS_A_PAGE = 50;
const ROUNDS_A_LOOK = 4000; // rows of the rounds that are searched at once

const BLOCK_FILTERS = [
  ["", "all blocks", () => true],
  ["evidence", "with evidence", (row) => row.flags & FLAG.evidence],
  ["members", "that change the members", (row) => row.flags & FLAG.membership],
  ["infeasible", "without a feasible schedule", (row) => row.flags & FLAG.infeasible],
  ["broken", "that are broken", (row) => row.flags & FLAG.problem],
  ["empty", "that are empty", (row) => row.is_empty > 0],
  ["attempts", "of a later attempt", (row) => row.attempt > 1],
];

function rowBadges(row) {
  const badges = [];
  if (row.problem) badges.push(badge("broken", "bad", row.problem));
  if (row.is_empty) badges.push(badge("empty", "warn", "Too few updates: the model stays as it was"));
  if (row.offenders.length) badges.push(badge("evidence", "bad", `Against ${row.offenders.join(", ")}`));
  if (row.change) badges.push(badge("members", "info", row.change));
  if (row.reason) badges.push(badge("infeasible", "warn", row.reason));
  if (row.attempt > 1) badges.push(badge(`attempt ${row.attempt}`, "warn"));
  if (row.missing.length) badges.push(badge(`${sayPlural(row.missing.length, "update")} missing`, "warn", `Of clients ${row.missing.join(", ")}`));
  return badges;
}

/** Without a chain there are rounds and no blocks. */
function hasBlocks(overview) {
  return overview.chain !== null;
}

function blockCells(row, overview) {
  return [
    link(hasBlocks(overview) ? `/block/${row.height}` : `/what-if/${row.height}`, sayCount(row.height), { class: "strong-link" }),
    ...(hasBlocks(overview) ? [element("span", {}, sayUtc(row.time_ms).replace(/\.\d+ UTC$/, ""), " ", element("small", { class: "muted" }, sayAge(row.time_ms))), hashText(row.digest, 12), clientLink(overview, row.proposer)] : []),
    sayPercent(row.accuracy),
    saySeconds(row.delay_s),
    element("span", { title: row.trained.length ? `Clients ${row.trained.join(", ")}` : null }, `${sayCount(row.trained.length)} of ${sayCount(row.trained.length + row.declined.length + row.missing.length)}`),
    ...(hasBlocks(overview) ? [sayCount(row.num_votes)] : []),
    sayNumber(row.mean_queue),
    element("span", { class: "chips" }, rowBadges(row)),
  ];
}

/** The flags that /rounds.json would give to a row of /blocks.json. */
function flagsOf(row) {
  return (row.offenders.length ? FLAG.evidence : 0) | (row.change ? FLAG.membership : 0) | (row.reason ? FLAG.infeasible : 0) | (row.problem ? FLAG.problem : 0);
}

/** Heights up to `last` that pass, newest first, at most a page and one more, searched in pieces. */
async function searchHeights(context, passes, last) {
  const found = [];
  if (isExported()) {
    const { blocks } = await getJson(inRun("/blocks.json"), context.signal);
    const rows = blocks.filter((row) => row.height <= last && passes({ ...row, flags: flagsOf(row), is_empty: Number(row.is_empty) }));
    return rows.map((row) => row.height).sort((one, other) => other - one);
  }
  for (let end = last; end >= 1 && found.length <= BLOCKS_A_PAGE; end -= ROUNDS_A_LOOK) {
    const first = Math.max(1, end - ROUNDS_A_LOOK + 1);
    const rounds = context.rounds.whole.bucket === 1 && context.rounds.isLoaded ? context.rounds.whole : await getJson(inRun(`/rounds.json?first=${first}&last=${end}&points=${ROUNDS_A_LOOK}`), context.signal);
    for (let index = rounds.round.length - 1; index >= 0 && found.length <= BLOCKS_A_PAGE; index -= 1) {
      const row = { round: rounds.round[index], proposer: rounds.proposer[index], flags: rounds.flags[index], is_empty: rounds.is_empty[index], attempt: rounds.attempt[index] };
      if (row.round >= first && row.round <= end && passes(row)) found.push(row.round);
    }
  }
  return found;
}

/** Rows of these heights, which fall. */
async function rowsAt(context, heights) {
  const rows = new Map();
  for (const height of heights) {
    if (rows.has(height)) continue;
    // An export holds all rows in one document.
    const range = isExported() ? "" : `?first=${Math.max(1, height - BLOCKS_A_PAGE + 1)}&last=${height}`;
    const answer = await getJson(inRun(`/blocks.json${range}`), context.signal);
    for (const row of answer.blocks) rows.set(row.height, row);
  }
  return heights.map((height) => rows.get(height)).filter((row) => row !== undefined);
}

export async function showBlocks(root, route, context) {
  const place = element("div", { "aria-live": "polite" });
  const asked = Number(route.query.get("last"));
  const choice = { proposer: route.query.get("proposer") ?? "", filter: route.query.get("show") ?? "" };
  let last = Number.isInteger(asked) && asked > 0 ? Math.min(asked, context.position) : context.position;
  let isFollowing = last === context.position;
  const { overview } = context;
  const select = (label, options, chosen, onChange) =>
    element("label", { class: "inline-field" }, label, element("select", { on: { change: (event) => onChange(event.target.value) } }, options.map(([value, text]) => element("option", { value, selected: value === chosen }, text))));
  const restart = () => {
    last = context.position;
    isFollowing = true;
    rewriteQuery({ last: null, proposer: choice.proposer === "" ? null : choice.proposer, show: choice.filter === "" ? null : choice.filter });
    draw().catch((error) => error.name !== "AbortError" && replaceContent(place, emptyState("No answer", error.message)));
  };
  replaceContent(
    root,
    pageHead({ title: hasBlocks(overview) ? "Blocks" : "Rounds", lead: hasBlocks(overview) ? "Newest first, up to where the replay stands." : "This is the record of a simulation: rounds without a chain. Each opens its what-if page.", json: inRun("/blocks.json") }),
    element(
      "div",
      { class: "filter-row" },
      select("Show", BLOCK_FILTERS.map(([name, text]) => [name, text]), choice.filter, (value) => {
        choice.filter = value;
        restart();
      }),
      select("won by", [["", "anybody"], ...overview.clients.map((client) => [String(client.client), client.name])], choice.proposer, (value) => {
        choice.proposer = value;
        restart();
      }),
    ),
    place,
  );
  let turn = 0;
  async function draw() {
    turn += 1;
    const mine = turn;
    if (last < 1) {
      replaceContent(place, emptyState("No block yet", "The first appears here when it is mined."));
      return;
    }
    const isFiltered = choice.proposer !== "" || choice.filter !== "";
    const filter = BLOCK_FILTERS.find(([name]) => name === choice.filter)?.[2] ?? (() => true);
    const passes = (row) => filter(row) && (choice.proposer === "" || String(row.proposer) === choice.proposer);
    const heights = isFiltered ? await searchHeights(context, passes, last) : Array.from({ length: Math.min(last, BLOCKS_A_PAGE + 1) }, (_, place) => last - place);
    const rows = await rowsAt(context, heights.slice(0, BLOCKS_A_PAGE));
    if (mine !== turn) return;
    const older = heights[BLOCKS_A_PAGE];
    const move = (to) => () => {
      last = Math.max(1, Math.min(context.position, to));
      isFollowing = last === context.position;
      rewriteQuery({ last: isFollowing ? null : last });
      draw().catch(() => {});
    };
    if (rows.length === 0) {
      const what = BLOCK_FILTERS.find(([name]) => name === choice.filter)?.[1] ?? "";
      replaceContent(place, emptyState("No such block", `Up to block ${sayCount(last)} there are no blocks ${choice.filter ? what : ""}${choice.proposer === "" ? "" : ` won by ${clientName(overview, Number(choice.proposer))}`}.`));
      return;
    }
    replaceContent(
      place,
      table({
        caption: `Blocks up to ${last}`,
        columns: [{ title: hasBlocks(overview) ? "Block" : "Round" }, ...(hasBlocks(overview) ? [{ title: "Proposed (UTC)" }, { title: "Digest" }, { title: "Won by" }] : []), { title: "Accuracy", isNumber: true }, { title: "Delay", isNumber: true }, { title: "Updates", isNumber: true }, ...(hasBlocks(overview) ? [{ title: "Votes in certificate", isNumber: true }] : []), { title: "Mean queue", isNumber: true }, { title: "Remarks" }],
        rows: rows.map((row) => blockCells(row, overview)),
        rowClass: (index) => (rows[index].problem ? "bad" : null),
      }),
      element(
        "div",
        { class: "pager" },
        button("Newest", move(context.position), { disabled: isFollowing }),
        button("Newer", move(last + BLOCKS_A_PAGE), { disabled: isFollowing }),
        element("span", { class: "muted" }, `${sayCount(rows.at(-1).height)} to ${sayCount(rows[0].height)} of ${sayCount(context.position)}`),
        button("Older", move(older ?? 1), { disabled: older === undefined }),
      ),
    );
  }
  let timer = 0;
  context.onPosition(() => {
    if (!isFollowing && last <= context.position) return;
    last = context.position;
    window.clearTimeout(timer);
    timer = window.setTimeout(() => draw().catch(() => {}), 150);
  });
  context.signal.addEventListener("abort", () => window.clearTimeout(timer), { once: true });
  await draw();
}
