/* One block: what happened in plain words, what this browser verified of it, and everything that stands in it. */

import { chainPanel, checkedBlock, showChecks, walkOf } from "./checking.js";
import { getBytes, getJson } from "./data.js";
import { badge, card, element, notice, replaceContent, table, tile, tiles } from "./dom.js";
import { isKnown, sayAge, sayBytes, sayCount, sayDecibel, sayEnergy, sayFrequency, sayNumber, sayPercent, sayPlural, sayPower, saySeconds, sayUtc } from "./format.js";
import { decodeRecord } from "./msgpack.js";
import { blockLink, clientLink, clientLinks, copyable, factList, inRun, legendOf, outcomeBadge, pageHead, plainTree, shareBar, stackedBar, stateSign } from "./page_parts.js";
import { link } from "./router.js";
import { leadingZeroBits } from "./verify.js";

/** Energy budgets (J) of the round of block `height`, by client: they stand in the block before it. */
async function budgetsOf(context, height) {
  const budgets = new Map();
  try {
    if (height > 1) {
      const before = await getJson(inRun(`/block/${height - 1}.json`), context.signal);
      for (const report of before.reports) budgets.set(report.client, report.energy_budget_j);
    } else {
      const genesis = decodeRecord(await getBytes(inRun("/raw/genesis"), context.signal), "Genesis");
      genesis.members.forEach((member, client) => budgets.set(client, Number(member.conditions.energy_budget_pj) / 1e12));
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  return budgets;
}

export async function showBlock(root, route, context) {
  const { height } = route;
  const document = await getJson(inRun(`/block/${height}.json`), context.signal);
  const budgets = await budgetsOf(context, height);
  const { overview } = context;
  const problem = document.problem ?? overview.problems.find((one) => one.height === height)?.what ?? null;
  const verdictPlace = element("div", { class: "verdict-place", "aria-live": "polite" }, element("p", { class: "muted" }, "Reading the block's bytes…"));
  const detailsPlace = element("div", {});
  const places = { verdictPlace, detailsPlace, root };
  if (!document.has_next)
    context.onOverview(() => {
      const steps = root.querySelector(".page-steps");
      if (!steps || steps.querySelector("[rel=next]") || context.overview.height <= height) return;
      steps.insertBefore(link(`/block/${height + 1}`, `${sayCount(height + 1)} →`, { class: "button step-link", rel: "next" }), steps.querySelector(".json-link"));
    });
  const grid = element("div", { class: "grid two block-grid", "aria-busy": "true" });
  replaceContent(
    root,
    pageHead({
      title: `Block ${sayCount(height)}`,
      badges: [problem ? badge("broken", "bad") : null, document.is_empty ? badge("empty", "warn", "Too few updates came: the model stayed") : null, document.attempt > 1 ? badge(`attempt ${document.attempt}`, "warn") : null],
      lead: document.digest ? element("span", {}, "digest ", copyable(document.digest, "the block's digest", 24)) : null,
      json: inRun(`/block/${height}.json`),
      previous: document.has_previous ? [`/block/${height - 1}`, sayCount(height - 1)] : null,
      next: document.has_next ? [`/block/${height + 1}`, sayCount(height + 1)] : null,
    }),
    problem ? notice("bad", element("b", {}, "This block is broken: "), problem) : null,
    document.digest ? factTiles(document) : null,
    grid,
  );
  grid.append(
    card("In plain words", { class: "words" }, document.sentences.length ? element("ul", { class: "sentences" }, document.sentences.map((sentence) => element("li", {}, sentence))) : element("p", { class: "muted" }, "Nothing of it can be read.")),
    card(
      "Checked in this browser",
      { class: "verification", id: "verification", note: "From the block's own bytes, whatever the server says of them." },
      verdictPlace,
      overview.chain && document.is_verifiable ? chainPanel(context, () => drawVerification(document, context, places)) : null,
      detailsPlace,
    ),
  );
  // Many clients make large tables: between two of them the page gets its turn.
  for (const node of document.digest ? contentCards(document, overview, budgets) : []) {
    grid.append(node);
    await new Promise((resolve) => {
      setTimeout(resolve, 0);
    });
    if (context.signal.aborted) return;
  }
  grid.removeAttribute("aria-busy");
  await drawVerification(document, context, places);
}

async function drawVerification(document, context, { verdictPlace, detailsPlace, root }) {
  if (!document.is_verifiable) {
    replaceContent(verdictPlace, notice("warn", element("b", {}, "Not verified here: "), document.problem ? "the block's bytes cannot be read." : "there are no bytes of a chain behind this page."));
    return;
  }
  let result;
  try {
    result = await checkedBlock(context, document.height, document.digest);
  } catch (error) {
    if (error.name === "AbortError" || context.signal.aborted) return;
    replaceContent(verdictPlace, notice("warn", element("b", {}, "Not verified here: "), error.message));
    return;
  }
  if (context.signal.aborted) return;
  const { verdict, details } = showChecks(result, document, walkOf(context.run, context.overview.chain));
  const wasOpen = detailsPlace.querySelector("details")?.open ?? false;
  replaceContent(verdictPlace, verdict);
  if (result.checks.length > 0) replaceContent(detailsPlace, element("details", { class: "check-details", open: wasOpen || result.state === "wrong" || verdict.dataset.verdict === "lie" }, element("summary", {}, "Every check"), details));
  markSigned(root, result);
}

/** Puts ✓ or ✗ beside every statement whose signature was checked. */
function markSigned(root, result) {
  const found = new Map(result.checks.flatMap((check) => check.items.map((item) => [`${check.rule}-${item.who}`, item])));
  for (const cell of root.querySelectorAll("[data-signed]")) {
    const item = found.get(cell.dataset.signed);
    replaceContent(cell, item ? stateSign(item.state, item.state === "ok" ? "signature checked here" : item.what) : stateSign("skipped"));
  }
  for (const check of result.checks.filter((one) => one.state === "wrong"))
    for (const part of root.querySelectorAll(`[data-part~="${check.rule}"]`)) {
      if (part.classList.contains("broken-part")) continue;
      part.classList.add("broken-part");
      part.prepend(notice("bad", `${check.title}: expected ${check.expected}; found ${check.found}.`));
    }
}

function signedCell(rule, who) {
  return element("span", { "data-signed": `${rule}-${who}` }, "…");
}

function factTiles(document) {
  const counted = document.updates.filter((update) => update.weight !== null && update.weight > 0).length || document.updates.filter((update) => update.model && update.samples > 0).length;
  return tiles(
    tile("Accuracy of its model", sayPercent(document.accuracy), document.is_empty ? "the model stayed" : isKnown(document.loss) ? `loss ${sayNumber(document.loss)}` : "on the test data"),
    tile("Delay of the round", saySeconds(document.modelled?.delay_s), document.modelled ? `${saySeconds(document.modelled.exchange_s)} training and upload, ${saySeconds(document.modelled.mining_s)} mining` : null),
    tile("Updates in its model", `${sayCount(counted)} of ${sayCount(document.schedule?.selected.length)}`, "that were scheduled"),
    tile("Proposed", sayAge(document.time_ms), `${sayUtc(document.time_ms)}, by its proposer's clock`),
    tile("Votes in the certificate", `${sayCount(document.votes.length)} of ${sayCount(document.members.length)}`, document.quorum ? `${sayCount(document.quorum)} are a quorum` : null, document.quorum && document.votes.length < document.quorum ? "bad" : ""),
    tile("Work", `${sayCount(document.difficulty)}`, `hashes expected, ${document.work}`),
    tile("Size", sayBytes(document.size_bytes), document.model_bytes ? `its model ${sayBytes(document.model_bytes)}` : null),
  );
}

/** The cards of a block's content, to be made one after the other. */
function* contentCards(document, overview, budgets) {
  const part = (names, node) => {
    node.dataset.part = names;
    return node;
  };
  const nextBudgets = new Map(document.reports.map((report) => [report.client, report.energy_budget_j]));
  const nextReports = new Map(document.reports.map((report) => [report.client, report]));
  const origin = document.height > 1 ? `block ${sayCount(document.height - 1)}` : "the genesis";
  yield part("updates empty", updatesCard(document, overview));
  yield part("work difficulty", workCard(document));
  yield costCard(document, overview, budgets);
  yield part("queues", queueCard(document, overview));
  yield part("schedule", scheduleCard("Schedule of this round", document.schedule, overview, `Fixed by ${origin}: everybody trained under what the chain had agreed on.`, budgets, null));
  yield scheduleCard("Schedule of the next round", document.next_schedule, overview, "Computed from the reports in this block.", nextBudgets, nextReports);
  if (document.entries.length) yield part("entries", entriesCard(document, overview));
  yield part("reports", reportsCard(document, overview));
  yield part("certificate", votesCard(document, overview));
  yield part("link body proposer", headerCard(document, overview));
}

function updatesCard(document, overview) {
  const most = Math.max(...document.updates.map((update) => update.weight ?? 0), 1e-9);
  const missing = (document.schedule?.selected ?? []).filter((client) => !document.updates.some((update) => update.client === client));
  const isPrivate = document.updates.some((update) => update.epsilon > 0);
  const spent = (text) => (isPrivate ? [text] : []);
  return card(
    "Updates",
    { note: "What each scheduled client trained, and how much of the block's model it is.", tools: [link(`/model/${document.height}`, "Lineage of the model", { class: "button" })] },
    document.updates.length || missing.length
      ? table({
          caption: "Updates of the round",
          columns: [{ title: "Client" }, { title: "Outcome" }, { title: "Weight in the model", class: "bar-column" }, { title: "Samples", isNumber: true }, ...spent({ title: "Epsilon so far", isNumber: true }), { title: "Model" }, { title: "Signed" }],
          rows: [
            ...document.updates.map((update) => [
              clientLink(overview, update.client),
              outcomeBadge(update.outcome ?? (update.model ? "trained" : "declined")),
              isKnown(update.weight) ? element("span", { class: "bar-cell" }, shareBar(update.weight / most, "accent", sayPercent(update.weight)), sayPercent(update.weight)) : null,
              sayCount(update.samples),
              ...spent(update.epsilon > 0 ? sayNumber(update.epsilon) : null),
              copyable(update.model, `the digest of client ${update.client}'s model`, 10),
              signedCell("updates", update.client),
            ]),
            ...missing.map((client) => [clientLink(overview, client), outcomeBadge("missing"), null, null, ...spent(null), null, null]),
          ],
          rowClass: (index) => (index >= document.updates.length ? "absent" : null),
        })
      : element("p", { class: "muted" }, document.reason ? `Nobody was scheduled: ${document.reason}` : "No update came."),
  );
}

function costCard(document, overview, budgets) {
  const { modelled } = document;
  const numbers = modelled.energy_j.map((_, client) => client).filter((client) => modelled.energy_j[client] > 0 || budgets.has(client));
  const rest = Math.max(0, modelled.delay_s - modelled.exchange_s - modelled.mining_s);
  return card(
    "Delay and energy",
    { note: "What the cost model says of the round as it was scheduled; the mark is the client's budget." },
    element(
      "div",
      { class: "delay-line" },
      stackedBar(
        [
          { value: modelled.exchange_s, tone: "training", label: `training and upload ${saySeconds(modelled.exchange_s)}` },
          { value: modelled.mining_s, tone: "mining", label: `mining ${saySeconds(modelled.mining_s)}` },
          { value: rest, tone: "rest", label: `overhead ${saySeconds(rest)}` },
        ],
        modelled.delay_s,
        `Delay ${saySeconds(modelled.delay_s)}: training and upload ${saySeconds(modelled.exchange_s)}, mining ${saySeconds(modelled.mining_s)}`,
      ),
      legendOf([
        ["training", `training and upload of the slowest ${saySeconds(modelled.exchange_s)}`],
        ["mining", `mining ${saySeconds(modelled.mining_s)}`],
        ...(rest > 1e-6 * modelled.delay_s ? [["rest", `overhead ${saySeconds(rest)}`]] : []),
      ]),
    ),
    table({
      caption: "Energy against budget",
      columns: [{ title: "Client" }, { title: "Energy", isNumber: true }, { title: "of its budget", class: "bar-column" }, { title: "Budget", isNumber: true }],
      rows: numbers.map((client) => {
        const energy = modelled.energy_j[client];
        const budget = budgets.get(client);
        const share = budget > 0 ? energy / budget : null;
        return [
          clientLink(overview, client),
          sayEnergy(energy),
          share === null ? null : element("span", { class: "bar-cell" }, shareBar(share / 1.1, share > 1.000001 ? "bad" : "accent", `${sayPercent(share)} of the budget`, 1 / 1.1), sayPercent(share)),
          sayEnergy(budget),
        ];
      }),
    }),
  );
}

function votesCard(document, overview) {
  return card(
    "Votes in its certificate",
    { note: document.quorum ? `${sayPlural(document.votes.length, "precommit")} of one attempt; ${sayCount(document.quorum)} of ${sayCount(document.members.length)} members are a quorum (${overview.quorum_rule}). Who is not in it may have voted later: the next block carries every precommit its proposer had.` : null },
    table({
      caption: "Votes in the certificate",
      columns: [{ title: "Voter" }, { title: "Waited", isNumber: true }, { title: "Holds updates of" }, { title: "Holds reports of" }, { title: "Attempt", isNumber: true }, { title: "Signed" }],
      rows: document.votes.map((vote) => [
        clientLink(overview, vote.voter),
        saySeconds(vote.mining_ms / 1000),
        clientLinks(overview, vote.updates),
        vote.reports.length === document.members.length ? element("span", { class: "muted" }, "everybody") : clientLinks(overview, vote.reports),
        sayCount(vote.attempt),
        signedCell("certificate", vote.voter),
      ]),
    }),
  );
}

/** 64 hexadecimal digits with the zeros at their beginning set apart. */
function zeroDigits(text) {
  const zeros = text.length - text.replace(/^0+/, "").length;
  return element("code", { class: "zero-digits" }, element("span", { class: "zeros" }, text.slice(0, zeros)), element("span", {}, text.slice(zeros)));
}

function workCard(document) {
  const target = document.target;
  const hash = document.work_hash;
  return card(
    "Proof of work",
    { note: `${document.work}: the hash of header and nonce, read as a number, must not be above the target.` },
    element(
      "dl",
      { class: "facts work-facts" },
      element("dt", {}, "Hash"),
      element("dd", {}, hash ? [zeroDigits(hash), element("span", { class: "zero-count" }, `${leadingZeroBits(hash)} leading zero bits`)] : element("span", { class: "muted" }, "not known here")),
      element("dt", {}, "Target"),
      element("dd", {}, target ? [zeroDigits(target), element("span", { class: "zero-count" }, `${leadingZeroBits(target)} leading zero bits`)] : "–"),
      element("dt", {}, "Difficulty"),
      element("dd", {}, `one hash in ${sayCount(document.difficulty)} serves`),
      element("dt", {}, "Nonce"),
      element("dd", {}, copyable(document.nonce, "the nonce", 16)),
      hash && target ? [element("dt", {}, "Verdict"), element("dd", {}, hash <= target ? badge("low enough", "good") : badge("above the target", "bad"))] : null,
    ),
  );
}

function scheduleCard(title, schedule, overview, note, budgets, reports) {
  const isIdle = schedule.reason !== "";
  const numbers = schedule.mining_hz.map((_, client) => client).filter((client) => schedule.selected.includes(client) || schedule.mining_hz[client] > 0 || budgets.has(client));
  return card(
    `${title}: round ${sayCount(schedule.round)}`,
    { note, tools: [link(`/what-if/${schedule.round}`, "What if", { class: "button" })] },
    isIdle ? notice("warn", `Nobody trains: ${schedule.reason}`) : null,
    isKnown(schedule.objective) ? element("p", { class: "objective" }, "Objective ", element("b", {}, sayNumber(schedule.objective, 5)), element("span", { class: "muted" }, " = V · delay − queues served")) : null,
    table({
      caption: title,
      columns: [{ title: "Client" }, { title: "Chosen" }, { title: "Processor", isNumber: true }, { title: "Radio", isNumber: true }, { title: "Mining", isNumber: true }, ...(reports ? [{ title: "Channel", isNumber: true }] : []), { title: "Budget", isNumber: true }],
      rows: numbers.map((client) => {
        const isChosen = schedule.selected.includes(client);
        return [
          clientLink(overview, client),
          isChosen ? badge("trains", "training") : element("span", { class: "muted" }, "mines only"),
          isChosen ? sayFrequency(schedule.cpu_hz[client]) : null,
          isChosen ? sayPower(schedule.power_w[client]) : null,
          sayFrequency(schedule.mining_hz[client]),
          ...(reports ? [sayDecibel(reports.get(client)?.gain_db)] : []),
          sayEnergy(budgets.get(client)),
        ];
      }),
      rowClass: (index) => (schedule.selected.includes(numbers[index]) ? "chosen" : null),
    }),
  );
}

function reportsCard(document, overview) {
  return card(
    `Reports for round ${sayCount(document.height + 1)}`,
    { wide: true, note: `Each client's channel and budget for the next round, ${document.height > 1 ? `and what round ${sayCount(document.height - 1)} really cost it` : "signed by each"}.` },
    document.reports.length
      ? table({
          caption: "Reports",
          columns: [{ title: "Client" }, { title: "Channel", isNumber: true }, { title: "Budget", isNumber: true }, { title: "Reachable" }, { title: "Energy spent", isNumber: true }, { title: "Training", isNumber: true }, { title: "Upload", isNumber: true }, { title: "Mining", isNumber: true }, { title: "Signed" }],
          rows: document.reports.map((report) => [
            clientLink(overview, report.client),
            sayDecibel(report.gain_db),
            sayEnergy(report.energy_budget_j),
            report.is_reachable ? "yes" : badge("no", "warn"),
            report.receipt ? sayEnergy(report.receipt.energy_j) : null,
            report.receipt ? saySeconds(report.receipt.training_s) : null,
            report.receipt ? saySeconds(report.receipt.upload_s) : null,
            report.receipt ? saySeconds(report.receipt.mining_s) : null,
            signedCell("reports", report.client),
          ]),
        })
      : element("p", { class: "muted" }, "Nobody reported."),
  );
}

function queueCard(document, overview) {
  const most = Math.max(...document.queue.map((row) => Math.max(row.before, row.after)), 1e-9);
  return card(
    "Fairness queues",
    { note: "How far each client is behind its participation rate: taking part empties its queue, waiting fills it." },
    table({
      caption: "Queues before and after the round",
      columns: [{ title: "Client" }, { title: "Before", isNumber: true }, { title: "After", isNumber: true }, { title: "Level, mark: before", class: "bar-column" }, { title: "Change", isNumber: true }],
      rows: document.queue.map((row) => {
        const change = row.after - row.before;
        return [
          clientLink(overview, row.client),
          sayNumber(row.before),
          sayNumber(row.after),
          shareBar(row.after / most, change > 0 ? "warn" : "accent", `${sayNumber(row.after)} rounds behind`, row.before / most),
          element("span", { class: change > 0 ? "rising" : "falling" }, Math.abs(change) < 1e-12 ? "=" : `${change > 0 ? "+" : "−"}${sayNumber(Math.abs(change))}`),
        ];
      }),
    }),
  );
}

function entriesCard(document, overview) {
  return card(
    "Entries: evidence and changes of membership",
    { wide: true },
    document.entries.map((entry) =>
      element(
        "div",
        { class: "entry" },
        element("p", {}, badge(entry.kind, entry.kind === "membership" ? "info" : "bad"), " ", entry.what, " ", entry.offender === null ? null : clientLink(overview, entry.offender)),
        plainTree(entry.kind === "membership" ? "What was agreed on, and who signed it" : "The evidence itself", entry.plain),
      ),
    ),
  );
}

function headerCard(document, overview) {
  return card(
    "Header",
    { note: "What the proof of work and the proposer's signature are for." },
    factList([
      ["Digest", copyable(document.digest, "the digest", 40)],
      ["Parent", element("span", { class: "fact-pair" }, copyable(document.parent, "the parent's digest", 40), document.height > 1 ? blockLink(document.height - 1) : "the genesis")],
      ["Chain", copyable(overview.chain, "the chain's id", 40)],
      ["Proposer", element("span", { class: "fact-pair" }, clientLink(overview, document.proposer), signedCell("proposer", document.proposer))],
      ["Proposer's signature", copyable(document.signature, "the signature", 40)],
      ["Merkle root of the body", copyable(document.body, "the Merkle root", 40)],
      ["Global model", element("span", { class: "fact-pair" }, copyable(document.model, "the model's digest", 40), link(`/model/${document.height}`, "lineage"))],
      ["Attempt", sayCount(document.attempt)],
      ["Members at this height", clientLinks(overview, document.members.map((member) => member.number))],
    ]),
  );
}
