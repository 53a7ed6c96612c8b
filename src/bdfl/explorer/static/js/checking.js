/* What this browser has verified, kept while the page is open: single blocks by digest, and one walk for each run. */

import { getBytes, isExported } from "./data.js";
import { badge, button, element, notice, replaceContent } from "./dom.js";
import { sayBytes, sayCount, sayPlural } from "./format.js";
import { stateSign } from "./page_parts.js";
import { link } from "./router.js";
import { ChainWalk, compareWithServer, verifyBlock } from "./verify.js";

const AT_ONCE_STATEMENTS = 20_000; // blocks times clients that are checked without being asked to
const MOST_KEPT_RESULTS = 300;

const chainWalks = new Map(); // run and chain → ChainWalk
const blockResults = new Map(); // run, height and digest → Promise<BlockResult>

function rawReader(run) {
  return async (height) => {
    try {
      return await getBytes(`/raw/${height}?run=${run}`);
    } catch (error) {
      if (error.status >= 400 && error.status < 500) return null;
      throw error;
    }
  };
}

function genesisReader(run) {
  return () => getBytes(`/raw/genesis?run=${run}`);
}

/** The walk along the run's chain; the same one whenever it is asked for. */
export function walkOf(run, chain) {
  const name = `${run}:${chain}`;
  if (!chainWalks.has(name)) chainWalks.set(name, new ChainWalk(genesisReader(run), rawReader(run)));
  return chainWalks.get(name);
}

/** Heights of blocks before `height` that changed the members, as the run's rows say. */
async function changeHeightsOf(context, height) {
  const { overview } = context;
  const since = overview.clients.flatMap((client) => [client.since > 1 ? client.since - 2 : null, client.until === null ? null : client.until - 1]);
  return [...new Set(since.filter((one) => one !== null && one >= 1 && one < height))].sort((one, other) => one - other);
}

/** A block judged by this browser, from its bytes; once for each digest. */
export async function checkedBlock(context, height, digest) {
  const name = `${context.run}:${height}:${digest}`;
  if (!blockResults.has(name)) {
    if (blockResults.size > MOST_KEPT_RESULTS) blockResults.clear();
    const changes = await changeHeightsOf(context, height);
    const found = verifyBlock(genesisReader(context.run), rawReader(context.run), height, changes).then((result) => ({ ...result, changes }));
    blockResults.set(name, found);
    found.catch(() => blockResults.delete(name));
  }
  return blockResults.get(name);
}

/** A check that needed all blocks before, once a walk from genesis has come past this very block. */
function settledByWalk(check, result, walk) {
  const isPassed = walk && result.digest !== null && walk.verdict.digests[result.height] === result.digest;
  if (!isPassed || check.state !== "skipped" || !["time", "difficulty", "queues"].includes(check.rule)) return check;
  return { ...check, state: "ok", text: "derived again on the way from genesis to here" };
}

/** Whose keys a block was checked with: what a lone block cannot prove is said. */
function sayMembers(result, walk) {
  if (walk?.verdict.digests[result.height] === result.digest) return "The members are those that follow from the genesis and every block before this one. ";
  const changes = result.changes.length ? ` and the changes in blocks ${result.changes.join(", ")}, read from their bytes` : "";
  return `The members are those of the genesis${changes}; that no other block changed them is known once the whole chain is checked. `;
}

/** The list of a block's checks. */
function checkList(checks) {
  return element(
    "ul",
    { class: "check-list" },
    checks.map((check) =>
      element(
        "li",
        { class: `check ${check.state}`, "data-rule": check.rule },
        stateSign(check.state),
        element(
          "div",
          {},
          element("span", { class: "check-title" }, check.title),
          check.state === "wrong"
            ? element(
                "span",
                { class: "check-text" },
                element("b", {}, "expected "),
                check.expected,
                element("br", {}),
                element("b", {}, "found "),
                check.found,
              )
            : element("span", { class: "check-text" }, check.text),
        ),
      ),
    ),
  );
}

/**
 * What this browser found out about a block, and where the server says something else.
 * @returns {{verdict: Node, details: Node}}
 */
export function showChecks(result, document, walk) {
  if (result.state === "skipped")
    return { verdict: notice("warn", element("b", {}, "Not verified here: "), `${result.why}. On a command line `, element("code", {}, "bdfl chain verify"), " checks the whole chain."), details: element("div", {}) };
  const checks = result.checks.map((check) => settledByWalk(check, result, walk));
  const wrong = checks.filter((check) => check.state === "wrong");
  const right = checks.filter((check) => check.state === "ok");
  const lies = compareWithServer(result, document);
  const numSignatures = result.checks.reduce((sum, check) => sum + check.items.filter((item) => item.state === "ok").length, 0);
  const verdict = element(
    "div",
    { class: `verdict ${wrong.length || lies.length ? "bad" : "good"}`, role: "status", "data-verdict": wrong.length ? "wrong" : lies.length ? "lie" : "ok" },
    element("span", { class: "verdict-sign", "aria-hidden": "true" }, wrong.length || lies.length ? "✗" : "✓"),
    element(
      "div",
      {},
      element(
        "p",
        { class: "verdict-title" },
        wrong.length ? `Broken: ${wrong[0].title.toLowerCase()} – not so` : lies.length ? "The server says something else than the bytes" : "Verified by this browser",
      ),
      element(
        "p",
        {},
        wrong.length
          ? `Expected ${wrong[0].expected}; found ${wrong[0].found}.`
          : `${sayPlural(right.length, "check")} hold, with ${sayPlural(numSignatures, "Ed25519 signature")}, computed here from ${sayBytes(result.bytes)} of the block's own bytes.`,
      ),
    ),
  );
  return {
    verdict,
    details: element(
      "div",
      {},
      lies.length
        ? element(
            "div",
            { class: "lies", role: "alert" },
            element("p", { class: "note bad" }, element("b", {}, "Do not trust what this page shows: "), "the server's description differs from the block's bytes."),
            element(
              "ul",
              {},
              lies.slice(0, 12).map((lie) =>
                element("li", {}, element("b", {}, lie.field), ": the server says ", element("code", {}, lie.said), ", the bytes say ", element("code", {}, lie.found)),
              ),
            ),
          )
        : null,
      checkList(checks),
      element("p", { class: "field-hint" }, sayMembers(result, walk), "Accuracy and loss do not stand on a chain: they are what the run measured. The sentences are the server's; the fields they are made of were compared with the bytes."),
    ),
  };
}

/** A card's content about the whole chain: a button or a progress bar, then the verdict. */
export function chainPanel(context, onDone) {
  const place = element("div", { class: "chain-panel" });
  const { overview, run } = context;
  const walk = walkOf(run, overview.chain);
  function draw() {
    const { verdict } = walk;
    const last = Math.max(context.overview.height, verdict.last);
    if (verdict.state === "skipped" && verdict.why) {
      replaceContent(place); // the block's own verdict says why
    } else if (verdict.failure) {
      const { failure } = verdict;
      replaceContent(
        place,
        element(
          "div",
          { class: "verdict bad", role: "status", "data-chain": "wrong", "data-height": failure.height },
          element("span", { class: "verdict-sign", "aria-hidden": "true" }, "✗"),
          element(
            "div",
            {},
            element("p", { class: "verdict-title" }, failure.height === 0 ? "The genesis is broken" : "The chain breaks at ", failure.height ? link(`/block/${failure.height}`, `block ${sayCount(failure.height)}`) : null),
            element("p", {}, `${failure.title}: expected ${failure.expected}; found ${failure.found}. ${failure.height > 1 ? `Blocks 1 to ${sayCount(failure.height - 1)} hold; ` : ""}later ones were not judged.`),
          ),
        ),
      );
    } else if (verdict.height >= last && verdict.chain !== null) {
      const isOther = overview.chain !== null && overview.chain !== verdict.chain;
      replaceContent(
        place,
        isOther ? notice("bad", `The server calls this chain ${overview.chain.slice(0, 16)}…, its genesis says ${verdict.chain.slice(0, 16)}….`) : null,
        element(
          "div",
          { class: "verdict good small", role: "status", "data-chain": "ok", "data-height": verdict.height },
          element("span", { class: "verdict-sign", "aria-hidden": "true" }, "✓"),
          element(
            "div",
            {},
            element("p", { class: "verdict-title" }, `The whole chain: genesis to block ${sayCount(verdict.height)}`),
            element("p", {}, `${sayPlural(verdict.numSignatures, "signature")}, every link, root, quorum and queue, in ${sayBytes(verdict.numBytes)}.`),
          ),
        ),
      );
    } else if (walk.missing !== null && walk.numWalkers === 0) {
      replaceContent(
        place,
        notice("warn", element("b", {}, "The whole chain is not checked here: "), `the bytes of block ${sayCount(walk.missing)} cannot be had${isExported() ? ", this export begins later" : ""}. ${walk.missing > 1 ? `Blocks 1 to ${sayCount(walk.missing - 1)} hold.` : ""}`),
        isExported() ? null : button("Try again", begin),
      );
    } else {
      const isRunning = walk.numWalkers > 0;
      replaceContent(
        place,
        isRunning
          ? element(
              "div",
              { class: "walk-progress" },
              element("label", {}, `Checking the whole chain: block ${sayCount(verdict.height)} of ${sayCount(last)}`, element("progress", { max: last, value: verdict.height })),
            )
          : element(
              "div",
              { class: "walk-offer" },
              button(`Check the whole chain (${sayPlural(last, "block")})`, begin, { class: "button primary" }),
              verdict.height > 0 ? badge(`${sayCount(verdict.height)} checked so far`, "good") : null,
            ),
      );
    }
  }
  function begin() {
    walk.numWalkers += 1;
    draw();
    walk
      .advance(context.overview.height, draw, context.signal)
      .catch((error) => {
        if (error.name !== "AbortError") replaceContent(place, notice("bad", error.message));
      })
      .finally(() => {
        walk.numWalkers -= 1;
        if (context.signal.aborted) return;
        draw();
        onDone();
      });
  }
  context.onOverview(() => {
    // A chain that was checked to its end and has grown: only what is new remains.
    const { verdict } = walk;
    const isClose = (context.overview.height - verdict.height) * Math.max(1, overview.clients.length) <= AT_ONCE_STATEMENTS;
    if (walk.numWalkers === 0 && !verdict.failure && verdict.why === "" && verdict.chain !== null && isClose && verdict.height < context.overview.height) begin();
  });
  const isSmall = (overview.height - walk.verdict.height) * Math.max(1, overview.clients.length) <= AT_ONCE_STATEMENTS;
  if (isSmall && !walk.verdict.failure && walk.verdict.height < overview.height) begin();
  else draw();
  return place;
}
