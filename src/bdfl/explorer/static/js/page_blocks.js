/* All blocks in a table, newest first, 50 at a time. */

import { getJson, isExported } from "./data.js";
import { badge, button, element, emptyState, hashText, replaceContent, table } from "./dom.js";
import { sayCount, sayPercent, saySeconds } from "./format.js";
import { link, rewriteQuery } from "./router.js";

const BLOCKS_A_PAGE = 50;

/** The badges of a row of /blocks.json. */
function blockBadges(row) {
  const badges = [];
  if (row.problem) badges.push(badge("broken", "bad", row.problem));
  if (row.is_empty) badges.push(badge("empty", "warn", row.reason || "Too few updates: the model stays as it was"));
  if (row.offenders.length) badges.push(badge("evidence", "bad", `Proof of misbehaviour of client ${row.offenders.join(", ")}`));
  if (row.change) badges.push(badge("members", "info", row.change));
  if (row.declined.length) badges.push(badge(`${row.declined.length} declined`, "", `Client ${row.declined.join(", ")}`));
  if (row.missing.length) badges.push(badge(`${row.missing.length} missing`, "warn", `Client ${row.missing.join(", ")}`));
  if (row.attempt > 1) badges.push(badge(`attempt ${row.attempt}`, "warn"));
  return badges;
}

function blockCells(row, clientName) {
  const num_selected = row.trained.length + row.declined.length + row.missing.length;
  return [
    link(`/block/${row.height}`, sayCount(row.height)),
    hashText(row.digest, 12),
    row.proposer === null ? null : link(`/client/${row.proposer}`, clientName(row.proposer)),
    sayPercent(row.accuracy),
    saySeconds(row.delay_s),
    row.problem && !num_selected ? null : `${sayCount(row.trained.length)} of ${sayCount(num_selected)}`,
    sayCount(row.num_votes),
    element("span", { class: "chips" }, blockBadges(row)),
  ];
}

export async function showBlocks(root, route, context) {
  const place = element("div", {});
  const asked = Number(route.query.get("last"));
  let last = Number.isInteger(asked) && asked > 0 ? Math.min(asked, context.position) : context.position;
  replaceContent(
    root,
    element("div", { class: "page-head" }, element("div", {}, element("h1", {}, "Blocks"), element("p", { class: "lead" }, "Newest first, up to where the replay stands."))),
    place,
  );
  const clientName = (number) => (context.overview.clients[number] ? context.overview.clients[number].name : `client ${number}`);
  async function draw() {
    const first = Math.max(1, last - BLOCKS_A_PAGE + 1);
    if (last < 1) {
      replaceContent(place, emptyState("No block yet", "The first appears here when it is mined."));
      return;
    }
    // An export holds all rows in one document.
    const range = isExported() ? "" : `&first=${first}&last=${last}`;
    const answer = await getJson(`/blocks.json?run=${context.run}${range}`, context.signal);
    const rows = answer.blocks.filter((row) => row.height >= first && row.height <= last);
    const move = (to) => () => {
      last = Math.max(1, Math.min(context.position, to));
      isFollowing = last === context.position;
      rewriteQuery({ last: last === context.position ? null : last });
      draw();
    };
    replaceContent(
      place,
      table({
        caption: `Blocks ${first} to ${last}`,
        columns: [
          { title: "Block" },
          { title: "Digest" },
          { title: "Won by" },
          { title: "Accuracy", isNumber: true },
          { title: "Delay", isNumber: true },
          { title: "Updates", isNumber: true },
          { title: "Votes", isNumber: true },
          { title: "Flags" },
        ],
        rows: rows.map((row) => blockCells(row, clientName)),
        rowClass: (index) => (rows[index].problem ? "bad" : null),
      }),
      element(
        "div",
        { class: "pager" },
        button("Newer", move(last + BLOCKS_A_PAGE), { disabled: last >= context.position }),
        element("span", { class: "muted" }, `${sayCount(first)} to ${sayCount(last)} of ${sayCount(context.position)}`),
        button("Older", move(first - 1), { disabled: first <= 1 }),
      ),
    );
  }
  let isFollowing = last === context.position;
  let timer = 0;
  context.onPosition(() => {
    if (!isFollowing && last <= context.position) return;
    last = context.position;
    window.clearTimeout(timer);
    timer = window.setTimeout(() => draw().catch(() => {}), 120);
  });
  await draw();
}
