/* Where the pages' data come from: the server, or the export's own data block. Nothing here is ever written. */

/** A document that could not be had: `status` is the HTTP status (0: no answer at all). */
export class DataError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

let exportedDocuments; // undefined until looked for, null outside an export

function exported() {
  if (exportedDocuments === undefined) {
    const block = document.getElementById("data");
    exportedDocuments = block ? JSON.parse(block.textContent) : null;
    if (exportedDocuments) {
      const byKey = {};
      for (const [path, value] of Object.entries(exportedDocuments)) byKey[documentKey(path)] = value;
      exportedDocuments = byKey;
    }
  }
  return exportedDocuments;
}

/** Whether this page is a static export (data inside the page, addresses behind "#"). */
export function isExported() {
  return exported() !== null;
}

/** One spelling per document: parameters sorted, `run=0` left out. */
export function documentKey(path) {
  const url = new URL(path, "http://explorer.invalid");
  if (url.searchParams.get("run") === "0") url.searchParams.delete("run");
  url.searchParams.sort();
  return url.pathname + url.search;
}

/** Rows of the export's one table of blocks, for any first and last; undefined where the path asks for something else. */
function exportedBlocks(path) {
  const url = new URL(path, "http://explorer.invalid");
  const run = url.searchParams.get("run");
  const whole = url.pathname === "/blocks.json" ? exported()[documentKey(run ? `/blocks.json?run=${run}` : "/blocks.json")] : undefined;
  if (!whole) return undefined;
  const last = Math.min(Number(url.searchParams.get("last") || whole.height), whole.height);
  const first = Math.max(Number(url.searchParams.get("first") || last - 49), 1);
  return { ...whole, first, last, blocks: whole.blocks.filter((row) => row.height >= first && row.height <= last) };
}

/** Whether the export carries that document; always true with a server. */
export function hasDocument(path) {
  return !isExported() || documentKey(path) in exported() || exportedBlocks(path) !== undefined;
}

async function ask(path, signal, accept) {
  let response;
  try {
    response = await fetch(path, { signal, headers: { Accept: accept }, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new DataError("The explorer's server does not answer.", 0);
  }
  if (response.ok) return response;
  const text = (await response.text()).slice(0, 400);
  let message = text;
  try {
    const body = JSON.parse(text);
    message = body.error || body.message || body.detail || text;
  } catch {
    // plain text then
  }
  throw new DataError(message || `The server answered with status ${response.status}.`, response.status);
}

/**
 * The JSON document at `path` ("/block/12.json?run=1").
 * @param {string} path
 * @param {AbortSignal} [signal] the page's, so that nothing arrives for a page that was left
 */
export async function getJson(path, signal) {
  if (isExported()) {
    const found = exported()[documentKey(path)] || exportedBlocks(path);
    if (!found) throw new DataError("This export does not contain that page.", 404);
    return found;
  }
  return (await ask(path, signal, "application/json")).json();
}

/** The bytes at `path` ("/raw/12"). @returns {Promise<Uint8Array>} */
export async function getBytes(path, signal) {
  if (isExported()) {
    const found = exported()[documentKey(path)];
    if (found === undefined) throw new DataError("This export does not contain these bytes.", 404);
    return Uint8Array.from(atob(found), (character) => character.charCodeAt(0));
  }
  return new Uint8Array(await (await ask(path, signal, "application/octet-stream")).arrayBuffer());
}

/**
 * Follows a run's events until `stop` is called.
 * @param {number} run
 * @param {{block?: Function, status?: Function, gone?: Function, back?: Function, state?: (isConnected: boolean) => void}} handlers
 * @returns {() => void} stop
 */
export function watch(run, handlers) {
  if (isExported()) return () => {};
  let source = null;
  let timer = 0;
  let wait_ms = 500;
  let isStopped = false;
  function open() {
    source = new EventSource(`/events?run=${run}`);
    source.addEventListener("open", () => {
      wait_ms = 500;
      if (handlers.state) handlers.state(true);
    });
    source.addEventListener("error", () => {
      if (handlers.state && !isStopped) handlers.state(false);
      // EventSource gives up for good on an HTTP error; a server that comes back must be found again.
      if (source.readyState === EventSource.CLOSED && !isStopped) {
        timer = window.setTimeout(open, wait_ms);
        wait_ms = Math.min(wait_ms * 2, 5000);
      }
    });
    for (const name of ["block", "status", "gone", "back"]) {
      source.addEventListener(name, (event) => {
        if (handlers[name]) handlers[name](event.data ? JSON.parse(event.data) : {});
      });
    }
  }
  function stop() {
    isStopped = true;
    window.clearTimeout(timer);
    if (source) source.close();
  }
  window.addEventListener("pagehide", stop, { once: true });
  open();
  return stop;
}
