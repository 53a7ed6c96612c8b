/* Parts that the pages of blocks, clients, models, what-if and comparisons share. */

import { isExported } from "./data.js";
import { badge, element, hashText, replaceContent } from "./dom.js";
import { currentRun, link } from "./router.js";
import { sayCount } from "./format.js";

/** The address of a document of the run that is shown: "/block/12.json" → "/block/12.json?run=1". */
export function inRun(path) {
  const run = currentRun();
  if (run === 0) return path;
  return `${path}${path.includes("?") ? "&" : "?"}run=${run}`;
}

/** Where the JSON twin of a page can be opened: at the server, or as a file beside the export. */
export function twinAddress(path) {
  if (!isExported()) return path;
  const run = currentRun();
  return `${run === 0 ? "" : `run-${run}/`}${path.slice(1).replace(/\?.*$/, "")}`;
}

/** A client's name as the overview has it. */
export function clientName(overview, number) {
  return overview.clients.find((client) => client.client === number)?.name ?? `client ${number}`;
}

/** A link to a client, with its dot. */
export function clientLink(overview, number) {
  if (number === null || number === undefined) return element("span", { class: "muted" }, "–");
  return link(`/client/${number}`, clientName(overview, number), { class: "client-link" });
}

/** Links to several clients, with commas between. */
export function clientLinks(overview, numbers) {
  if (numbers.length === 0) return element("span", { class: "muted" }, "nobody");
  return element(
    "span",
    { class: "client-list" },
    numbers.map((number, place) => [place > 0 ? ", " : null, link(`/client/${number}`, String(number), { title: clientName(overview, number) })]),
  );
}

export function blockLink(height, text) {
  return link(`/block/${height}`, text ?? `block ${sayCount(height)}`);
}

/** A digest or key with a button that copies all of it. */
export function copyable(text, what, length = 16) {
  if (!text) return element("span", { class: "muted" }, "–");
  const button = element("button", { type: "button", class: "copy-button", "aria-label": `Copy ${what}`, title: `Copy ${what}` }, "copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(button.previousSibling);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = "selected";
    }
    setTimeout(() => {
      button.textContent = "copy";
    }, 1500);
  });
  return element("span", { class: "copyable" }, hashText(text, length), button);
}

/**
 * The top of a page: its name, what it is, badges, where one can go from here.
 * @param {{title: string, lead?: Node|string|null, badges?: Node[], json?: string, previous?: [string, string]|null,
 *   next?: [string, string]|null}} options `previous` and `next` are [address, label]
 */
export function pageHead(options) {
  const step = (target, arrow, rel) =>
    target === null || target === undefined
      ? null
      : link(target[0], arrow === "←" ? `← ${target[1]}` : `${target[1]} →`, { class: "button step-link", rel });
  return element(
    "div",
    { class: "page-head" },
    element(
      "div",
      { class: "page-title" },
      element("h1", { tabindex: "-1" }, options.title, options.badges ? element("span", { class: "title-badges" }, options.badges) : null),
      options.lead ? element("p", { class: "page-lead" }, options.lead) : null,
    ),
    element(
      "nav",
      { class: "page-steps", "aria-label": "From here" },
      step(options.previous, "←", "prev"),
      step(options.next, "→", "next"),
      options.json ? element("a", { class: "button quiet json-link", href: twinAddress(options.json), target: "_blank", rel: "noopener" }, "JSON") : null,
    ),
  );
}

/** A horizontal bar: `share` of its track, `mark` a line across it (a budget, a target), both from 0 to 1. */
export function shareBar(share, tone, label, mark) {
  const width = Math.max(0, Math.min(1, Number.isFinite(share) ? share : 0));
  return element(
    "span",
    { class: "meter-bar", role: "img", "aria-label": label },
    element("span", { class: `meter-fill ${tone || ""}`.trim(), style: { width: `${(100 * width).toFixed(2)}%` } }),
    mark === undefined || mark === null
      ? null
      : element("span", { class: "meter-mark", style: { left: `${(100 * Math.max(0, Math.min(1, mark))).toFixed(2)}%` } }),
  );
}

/** Parts of a whole as one bar: `parts` are {value, tone, label}; `most` is the length of the track. */
export function stackedBar(parts, most, label) {
  return element(
    "span",
    { class: "stacked-bar", role: "img", "aria-label": label },
    parts
      .filter((part) => part.value > 0)
      .map((part) =>
        element("span", {
          class: `stacked-part ${part.tone}`,
          title: part.label,
          style: { width: `${((100 * part.value) / (most > 0 ? most : 1)).toFixed(3)}%` },
        }),
      ),
  );
}

/** What colours of a stacked bar mean. */
export function legendOf(entries) {
  return element(
    "ul",
    { class: "part-legend" },
    entries.map(([tone, label]) => element("li", {}, element("span", { class: `swatch ${tone}`, "aria-hidden": "true" }), label)),
  );
}

/** Terms and what they are, in two columns. */
export function factList(entries) {
  return element(
    "dl",
    { class: "facts" },
    entries.filter((entry) => entry !== null).map(([term, value]) => [element("dt", {}, term), element("dd", {}, value ?? "–")]),
  );
}

/** A record of the chain as nested lists, closed at first. */
export function plainTree(title, plain) {
  return element("details", { class: "plain-tree" }, element("summary", {}, title), plainNode(plain));
}

function plainNode(plain) {
  if (plain === null) return element("span", { class: "muted" }, "none");
  if (Array.isArray(plain)) {
    if (plain.every((item) => typeof item !== "object")) return element("span", {}, plain.join(", ") || "none");
    return element("ol", {}, plain.map((item) => element("li", {}, plainNode(item))));
  }
  if (typeof plain === "object")
    return element(
      "dl",
      { class: "facts" },
      Object.entries(plain).map(([name, value]) => [element("dt", {}, name.replaceAll("_", " ")), element("dd", {}, plainNode(value))]),
    );
  const text = String(plain);
  return /^[0-9a-f]{40,}$/.test(text) ? copyable(text, "value") : element("span", {}, text);
}

/** A sign for a state: ✓, ✗ or –, with a word for those who cannot see it. */
export function stateSign(state, what) {
  const [sign, tone, word] = { ok: ["✓", "good", "right"], wrong: ["✗", "bad", "wrong"], skipped: ["–", "muted", "not checked here"] }[state];
  return element(
    "span",
    { class: `state-sign ${tone}`, title: what || word },
    element("span", { "aria-hidden": "true" }, sign),
    element("span", { class: "out-of-sight" }, what ? `${word}: ${what}` : word),
  );
}

/** Shows what went wrong in place of a part of a page. */
export function showTrouble(root, error) {
  if (error.name === "AbortError") return;
  replaceContent(root, element("p", { class: "note bad", role: "alert" }, error.message));
}

/** Calls `action` once things have been quiet for `wait_ms`. */
export function debounced(action, wait_ms) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...given), wait_ms);
  };
}

/** A word for how an update of a round went. */
export function outcomeBadge(outcome) {
  const tones = { trained: "good", declined: "warn", diverged: "bad", "no-samples": "", missing: "bad" };
  return outcome ? badge(outcome, tones[outcome] ?? "") : element("span", { class: "muted" }, "–");
}

