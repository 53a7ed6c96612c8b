/* Addresses: real links, real history; in an export the same addresses stand behind "#". */

import { element } from "./dom.js";
import { isExported } from "./data.js";

/**
 * @typedef {{page: string, path: string, height: number|null, client: number|null, query: URLSearchParams}} Route
 * `page` is overview, network, blocks, block, client, model, what-if, compare or missing.
 */

const PATTERNS = [
  [/^\/(?:index\.html)?$/, "overview", null],
  [/^\/network$/, "network", null],
  [/^\/blocks$/, "blocks", null],
  [/^\/block\/(\d{1,12})$/, "block", "height"],
  [/^\/client\/(\d{1,9})$/, "client", "client"],
  [/^\/model\/(\d{1,12})$/, "model", "height"],
  [/^\/what-if$/, "what-if", null],
  [/^\/what-if\/(\d{1,12})$/, "what-if", "height"],
  [/^\/compare$/, "compare", null],
];

function currentAddress() {
  if (!isExported()) return location.pathname + location.search;
  return location.hash.startsWith("#/") ? location.hash.slice(1) : "/";
}

/** The route an address such as "/block/12?run=1" names. @returns {Route} */
export function parseAddress(address) {
  const url = new URL(address, "http://explorer.invalid");
  for (const [pattern, page, number] of PATTERNS) {
    const match = pattern.exec(url.pathname);
    if (!match) continue;
    const value = number ? Number(match[1]) : null;
    return {
      page,
      path: url.pathname,
      height: number === "height" ? value : null,
      client: number === "client" ? value : null,
      query: url.searchParams,
    };
  }
  return { page: "missing", path: url.pathname, height: null, client: null, query: url.searchParams };
}

/** @returns {Route} of the address bar */
export function currentRoute() {
  return parseAddress(currentAddress());
}

/** The number of the run this page shows. */
export function currentRun() {
  const run = Number(currentRoute().query.get("run") || 0);
  return Number.isInteger(run) && run >= 0 ? run : 0;
}

/** The address to put into a link; keeps the run one is in unless `path` names another. */
export function href(path) {
  const url = new URL(path, "http://explorer.invalid");
  const run = currentRun();
  if (!url.searchParams.has("run") && run > 0) url.searchParams.set("run", String(run));
  const address = url.pathname + url.search;
  return isExported() ? `#${address}` : address;
}

/** A link to a page of the explorer. */
export function link(path, text, attributes) {
  return element("a", { href: href(path), ...attributes }, text);
}

/** Goes to a page. */
export function go(path) {
  if (isExported()) {
    location.hash = href(path).slice(1);
  } else {
    history.pushState(null, "", href(path));
    window.dispatchEvent(new Event("explorer:navigate"));
  }
}

/** Changes parameters of the current address without a new entry in the history; null takes one away. */
export function rewriteQuery(changes) {
  const url = new URL(currentAddress(), "http://explorer.invalid");
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) url.searchParams.delete(name);
    else url.searchParams.set(name, String(value));
  }
  const address = url.pathname + url.search;
  if (address === currentAddress()) return;
  history.replaceState(null, "", isExported() ? `#${address}` : address);
}

/** Calls `onRoute` now and whenever the address changes; links inside the explorer no longer load the page anew. */
export function startRouter(onRoute) {
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const anchor = event.target instanceof Element ? event.target.closest("a[href]") : null;
    if (!anchor || anchor.hasAttribute("download") || anchor.getAttribute("target")) return;
    const address = anchor.getAttribute("href");
    if (isExported() || !address.startsWith("/") || address.startsWith("//")) return;
    if (parseAddress(address).page === "missing") return; // JSON twins, raw bytes
    event.preventDefault();
    if (address !== currentAddress()) history.pushState(null, "", address);
    onRoute(currentRoute(), true);
  });
  window.addEventListener("explorer:navigate", () => onRoute(currentRoute(), true));
  window.addEventListener("popstate", () => {
    if (!isExported()) onRoute(currentRoute(), true);
  });
  window.addEventListener("hashchange", () => {
    if (isExported() && (location.hash === "" || location.hash.startsWith("#/"))) onRoute(currentRoute(), true);
  });
  onRoute(currentRoute(), false);
}
