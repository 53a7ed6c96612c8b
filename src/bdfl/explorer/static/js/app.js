/* The shell: top bar, banner, replay bar, and the page the address names. pages.js says how a page plugs in. */

import { DataError, getJson, isExported, watch } from "./data.js";
import { element, emptyState, replaceContent, setText, shape } from "./dom.js";
import { sayCount } from "./format.js";
import { NAVIGATION, PAGES } from "./pages.js";
import { Replay, drawReplayBar } from "./replay.js";
import { currentRoute, currentRun, go, href, link, startRouter } from "./router.js";
import { RoundStore } from "./rounds.js";

const THEMES = ["system", "light", "dark"];
const LIVE_CHECK_MS = 15000; // whether a live run has ended
const IDLE_CHECK_MS = 3000; // whether an unfinished one goes on
const THEME_ICONS = {
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  light: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M5 19l2-2M17 7l2-2",
  dark: "M20 14.5A8.5 8.5 0 1 1 9.5 4a7 7 0 0 0 10.5 10.5z",
};

/**
 * One run being looked at: its overview, rounds, replay and connection.
 * @type {{run: number, overview: Object, rounds: RoundStore, replay: Replay, status: Object|null, isConnected: boolean|null,
 *   whyGone: string|null, listeners: Object<string, Set<Function>>, stop: () => void}|null}
 */
let session = null;
let pageController = null;
let pageNumber = 0;

function readTheme() {
  try {
    const theme = localStorage.getItem("bdfl-theme");
    return THEMES.includes(theme) ? theme : "system";
  } catch {
    return "system"; // storage is refused to files and private windows
  }
}

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("bdfl-theme", theme);
  } catch {
    // then it holds until the page is left
  }
  window.dispatchEvent(new Event("explorer:theme"));
}

function drawTop() {
  const top = document.getElementById("top");
  const run = currentRun();
  const overview = session && session.run === run ? session.overview : null;
  const route = currentRoute();
  const position = session ? session.replay.position : 0;
  const runs = overview ? overview.runs : [];
  const chooser =
    runs.length > 1
      ? element(
          "select",
          {
            "aria-label": "Run",
            on: { change: (event) => go(`${route.page === "compare" ? "/compare" : "/"}?run=${event.target.value}`) },
          },
          runs.map((one) => element("option", { value: one.run, selected: one.run === run }, one.name)),
        )
      : null;
  const theme = readTheme();
  const themeButton = element(
    "button",
    {
      type: "button",
      class: "top-button",
      title: "Light, dark or as the system has it",
      "aria-label": `Colours: ${theme}`,
      on: {
        click: () => {
          setTheme(THEMES[(THEMES.indexOf(readTheme()) + 1) % THEMES.length]);
          drawTop();
          document.querySelector("#top .top-button").focus();
        },
      },
    },
    shape(
      "svg",
      { viewBox: "0 0 24 24", "aria-hidden": "true", fill: "none", stroke: "currentColor", "stroke-width": "2", "stroke-linecap": "round" },
      shape("path", { d: THEME_ICONS[theme] }),
    ),
    element("span", { class: "theme-word" }, theme),
  );
  replaceContent(
    top,
    element(
      "a",
      { class: "brand", href: href("/"), title: overview ? overview.name : null },
      shape(
        "svg",
        { viewBox: "0 0 32 32", "aria-hidden": "true" },
        shape("path", { d: "M11 16h10", stroke: "#8fb8d8", "stroke-width": "2.4" }),
        shape("rect", { x: 3, y: 10.5, width: 11, height: 11, rx: 2.6, fill: "#56b4e9" }),
        shape("rect", { x: 18, y: 10.5, width: 11, height: 11, rx: 2.6, fill: "#e69f00" }),
      ),
      element("span", {}, "bdfl"),
      overview && !chooser ? element("span", { class: "brand-run" }, overview.name) : null,
    ),
    chooser,
    element(
      "nav",
      { class: "nav", "aria-label": "Pages" },
      NAVIGATION.filter(([pages]) => pages.some((page) => PAGES[page])).map(([pages, text, address]) =>
        link(address(position), text, { "aria-current": pages.includes(route.page) ? "page" : null, "data-page": pages[0] }),
      ),
    ),
    element("div", { class: "top-tools" }, overview ? searchField() : null, element("span", { class: "state-pill", id: "state", role: "status" }), themeButton),
  );
  const current = top.querySelector(".nav [aria-current]");
  if (current) current.parentElement.scrollLeft = current.offsetLeft - current.parentElement.offsetLeft - 40;
  drawState();
}

/** Links whose address depends on where the replay stands. */
function drawNavigation() {
  for (const anchor of document.querySelectorAll(".nav a")) {
    const entry = NAVIGATION.find(([pages]) => pages[0] === anchor.dataset.page);
    if (entry && session) anchor.setAttribute("href", href(entry[2](session.replay.position)));
  }
}

/** A field that leads to a block by height or digest, or to a client by number or name. */
function searchField() {
  const input = element("input", { type: "text", class: "search", placeholder: "Block, digest, client", "aria-label": "Go to a block or client", autocomplete: "off", spellcheck: "false", maxlength: "80", enterkeyhint: "go" });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !session) return;
    const target = findTarget(input.value.trim().toLowerCase());
    input.classList.toggle("not-found", target === null);
    input.setAttribute("aria-invalid", String(target === null));
    if (target === null) return;
    input.value = "";
    go(target);
  });
  return input;
}

function findTarget(text) {
  const { overview, replay, rounds } = session;
  const height = /^(?:block\s*|#)?(\d{1,12})$/.exec(text);
  if (height && Number(height[1]) >= 1 && Number(height[1]) <= replay.tip) return `/block/${Number(height[1])}`;
  const numbered = /^(?:client\s*|c)(\d{1,9})$/.exec(text);
  if (numbered && overview.clients[Number(numbered[1])]) return `/client/${Number(numbered[1])}`;
  const named = overview.clients.find((client) => client.name.toLowerCase() === text);
  if (named) return `/client/${named.client}`;
  const prefix = text.slice(0, 12);
  const index = prefix.length >= 4 && rounds.whole.digest ? rounds.whole.digest.findIndex((digest) => digest && (digest.startsWith(prefix) || prefix.startsWith(digest))) : -1;
  return index >= 0 ? `/block/${rounds.whole.round[index]}` : null;
}

function drawState() {
  const pill = document.getElementById("state");
  if (!pill) return;
  let text = "opening";
  let kind = "";
  if (session) {
    const { overview, replay } = session;
    if (overview.is_live && (session.isConnected === false || session.whyGone)) [text, kind] = [session.whyGone ? "gone" : "connection lost", "lost"];
    else if (overview.is_live && session.isConnected === null) text = "connecting";
    else if (overview.is_live && replay.isFollowing) [text, kind] = [isFinished(session.status) ? "finished" : "live", "live"];
    else if (overview.is_live) text = "looking back";
    else if (session.status && session.status.nodes.length && session.status.nodes.every((node) => !node.is_online)) [text, kind] = ["offline", "lost"];
    else text = isExported() ? "export" : "replay";
  }
  setText(pill, text);
  pill.className = `state-pill ${kind}`.trim();
}

/** Whether every node that answers has the last block. */
function isFinished(status) {
  const online = status ? status.nodes.filter((node) => node.is_online) : [];
  return online.length > 0 && online.every((node) => node.state === "finished");
}

const WELL = ["starting", "working", "catching-up", "finished"];

/** Nodes that somebody has to look after, by state, with the reason of the first of them. */
function listTroubles(status) {
  const troubles = new Map();
  for (const node of status ? status.nodes : []) {
    const state = node.state || "no answer";
    if (!WELL.includes(state)) troubles.set(state, [...(troubles.get(state) || []), node]);
  }
  return [...troubles].map(([state, nodes]) => ({ state, text: `${nodes.length > 1 ? "nodes" : "node"} ${nodes.map((node) => node.number).join(", ")}: ${nodes[0].reason}` }));
}

function drawBanner() {
  const place = document.getElementById("banner");
  const children = [];
  if (session) {
    const { overview, isConnected, whyGone } = session;
    if (overview.is_live && whyGone) {
      children.push(element("div", { class: "banner warn" }, element("strong", {}, "Gone: "), whyGone, " What was read stays; new blocks appear when it comes back."));
    } else if (overview.is_live && isConnected === false) {
      children.push(element("div", { class: "banner warn" }, element("strong", {}, "Connection lost: "), "the explorer's server does not answer. Trying again; what was read stays."));
    }
    if (overview.is_live && !whyGone && isConnected !== false) {
      for (const { state, text } of listTroubles(session.status)) children.push(element("div", { class: "banner warn", "data-state": state }, element("strong", {}, `${state[0].toUpperCase()}${state.slice(1).replace("-", " ")}, `), text));
      if (isFinished(session.status)) children.push(element("div", { class: "banner done" }, element("strong", {}, "Finished: "), `${session.status.nodes.find((node) => node.is_online).reason}. After it is stopped, `, element("code", {}, "bdfl explore FOLDER"), " opens it again."));
    }
    const problems = overview.problems || [];
    if (problems.length) {
      const first = problems[0];
      const others = problems.length - 1;
      children.push(
        element(
          "div",
          { class: "banner", id: "problems" },
          element("strong", {}, `The chain is broken at block ${sayCount(first.height)}: `),
          `${first.what} `,
          PAGES.block ? link(`/block/${first.height}`, `See block ${sayCount(first.height)}`) : null,
          others > 0 ? ` (and ${sayCount(others)} more ${others === 1 ? "problem" : "problems"}, at ${problems.slice(1, 6).map((problem) => problem.height).join(", ")}${others > 5 ? ", …" : ""})` : null,
        ),
      );
    }
  }
  replaceContent(place, children);
}

function tellSession(kind) {
  if (!session) return;
  for (const listener of [...session.listeners[kind]]) listener();
}

async function openSession(run) {
  if (session) session.stop();
  session = null;
  const overview = await getJson(`/index.json?run=${run}`);
  const rounds = new RoundStore(run);
  const replay = new Replay(rounds, overview.height, overview.is_live);
  const opened = {
    run,
    overview,
    rounds,
    replay,
    status: overview.status || null,
    isConnected: null,
    whyGone: null,
    listeners: { status: new Set(), overview: new Set() },
    stopWatching: () => {},
    stop: () => {},
  };
  session = opened;
  const at = Number(currentRoute().query.get("at"));
  if (currentRoute().query.has("at") && Number.isInteger(at) && at >= 0) replay.setPosition(at);
  drawReplayBar(document.getElementById("replay"), replay);
  replay.on("state", drawState);
  replay.on("position", drawNavigation);
  rounds.load().catch(() => {}); // the page that needs it says so
  opened.stopWatching = overview.is_live ? watchSession(opened) : () => {};
  const stopLooking = lookForLife(opened);
  opened.stop = () => {
    opened.stopWatching();
    stopLooking();
    replay.stop();
  };
  return opened;
}

/** Whether somebody writes on may change: a run ends, or one that stopped is taken up again. */
function lookForLife(opened) {
  if (isExported() || opened.overview.kind === "record") return () => {};
  let timer = 0;
  function wait() {
    const { is_live, height, planned_rounds } = opened.overview;
    const isComplete = planned_rounds !== null && height >= planned_rounds;
    if (!is_live && isComplete) return;
    timer = window.setTimeout(look, is_live && !isComplete ? LIVE_CHECK_MS : IDLE_CHECK_MS);
  }
  async function look() {
    try {
      const overview = await getJson(`/index.json?run=${opened.run}`);
      const isOther = overview.is_live !== opened.overview.is_live;
      const isGrown = overview.height > opened.overview.height;
      opened.overview = overview;
      if (isGrown) opened.rounds.refresh();
      opened.replay.isLive = overview.is_live;
      opened.replay.grow(overview.height);
      if (isOther) {
        opened.stopWatching();
        opened.isConnected = null;
        opened.whyGone = null;
        opened.status = overview.status;
        opened.stopWatching = overview.is_live ? watchSession(opened) : () => {};
      }
      if ((isOther || isGrown) && session === opened) {
        opened.replay.tell("state");
        drawBanner();
        tellSession("overview");
        tellSession("status");
      }
    } catch {
      // the connection's own state says so
    }
    if (session === opened) wait();
  }
  wait();
  return () => window.clearTimeout(timer);
}

function watchSession(opened) {
  let wasLost = false;
  async function catchUp() {
    try {
      opened.overview = await getJson(`/index.json?run=${opened.run}`);
      opened.status = opened.overview.status || opened.status;
      opened.rounds.refresh();
      opened.replay.grow(opened.overview.height);
      opened.replay.isLive = opened.overview.is_live;
      if (session === opened) {
        drawBanner();
        tellSession("overview");
        tellSession("status");
      }
    } catch {
      // still lost: the next try comes by itself
    }
  }
  return watch(opened.run, {
    block: (message) => {
      opened.overview = { ...opened.overview, ...message.overview };
      opened.rounds.append(message.rounds);
      opened.replay.grow(opened.overview.height);
      if (session !== opened) return;
      if (message.overview && message.overview.problems) drawBanner();
      tellSession("overview");
    },
    status: (message) => {
      opened.status = message.status || message;
      if (session !== opened) return;
      drawState();
      drawBanner();
      tellSession("status");
    },
    gone: (message) => {
      opened.whyGone = message.why || "the run cannot be read any more.";
      opened.status = null;
      if (session !== opened) return;
      drawState();
      drawBanner();
      tellSession("status");
    },
    back: () => {
      opened.whyGone = null;
      if (session === opened) {
        drawState();
        drawBanner();
      }
      catchUp();
    },
    state: (isConnected) => {
      opened.isConnected = isConnected;
      if (!isConnected) wasLost = true;
      else if (wasLost) {
        wasLost = false;
        opened.whyGone = null;
        catchUp();
      }
      if (session !== opened) return;
      drawState();
      drawBanner();
      tellSession("status");
    },
  });
}

/** What a page is given: see pages.js. All subscriptions end with `signal`. */
function makeContext(opened, signal) {
  function until(unsubscribe) {
    signal.addEventListener("abort", unsubscribe, { once: true });
    return unsubscribe;
  }
  function listen(kind, listener) {
    opened.listeners[kind].add(listener);
    return until(() => opened.listeners[kind].delete(listener));
  }
  return {
    run: opened.run,
    rounds: opened.rounds,
    replay: opened.replay,
    signal,
    get overview() {
      return opened.overview;
    },
    get status() {
      return opened.status;
    },
    get isConnected() {
      return opened.isConnected;
    },
    get position() {
      return opened.replay.position;
    },
    get tip() {
      return opened.replay.tip;
    },
    get progress() {
      return opened.replay.progress;
    },
    /** Whether what is shown lies in the past: a finished run, or a live one while looking back. */
    get isReplay() {
      return !opened.overview.is_live || !opened.replay.isFollowing;
    },
    setPosition: (height) => {
      opened.replay.pause();
      opened.replay.setPosition(height);
    },
    onPosition: (listener) => until(opened.replay.on("position", listener)),
    onFrame: (listener) => until(opened.replay.on("frame", listener)),
    onRows: (listener) => until(opened.rounds.onRows(listener)),
    onStatus: (listener) => listen("status", listener),
    onOverview: (listener) => listen("overview", listener),
  };
}

function drawFailure(root, error) {
  const isMissing = error instanceof DataError && error.status === 404;
  replaceContent(
    root,
    element("div", { class: "page-head" }, element("h1", {}, isMissing ? "Not here" : "This page could not be drawn")),
    emptyState(error.message || String(error), link("/", "Back to the overview")),
  );
}

async function showRoute(route, isNavigation) {
  if (pageController) pageController.abort();
  pageController = new AbortController();
  const { signal } = pageController;
  pageNumber += 1;
  const number = pageNumber;
  const main = document.getElementById("main");
  const root = element("div", { class: `page page-${route.page}` });
  const run = currentRun();
  try {
    if (!session || session.run !== run) {
      if (session) replaceContent(main, element("div", { class: "page" }));
      await openSession(run);
      if (number !== pageNumber) return;
    } else if (isNavigation && route.query.has("at")) {
      const at = Number(route.query.get("at"));
      if (Number.isInteger(at) && at !== session.replay.position) session.replay.setPosition(at);
    }
    session.replay.keepAddress();
    drawTop();
    drawBanner();
    replaceContent(main, root);
    if (isNavigation) window.scrollTo(0, 0);
    const page = PAGES[route.page];
    if (!page) throw new DataError(`There is no page at ${route.path}.`, 404);
    const [title, show] = page;
    document.title = `${title(route)} · ${session.overview.name} · bdfl explorer`;
    await show(root, route, makeContext(session, signal));
  } catch (error) {
    if (signal.aborted || number !== pageNumber) return;
    if (!root.isConnected) replaceContent(main, root);
    if (!session) drawTop();
    document.title = "bdfl explorer";
    drawFailure(root, error);
    if (!session && !(error instanceof DataError && error.status)) {
      window.setTimeout(() => number === pageNumber && showRoute(route, false), 2000); // the server may come
    }
  }
  const heading = root.querySelector("h1");
  if (heading) {
    heading.tabIndex = -1;
    if (isNavigation && number === pageNumber) heading.focus({ preventScroll: true });
  }
}

function onKey(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || !session) return;
  const target = event.target instanceof Element ? event.target : document.body;
  if (target.closest("input, select, textarea, button, a, summary, [role=radio], [data-keys]")) return;
  if (event.key === " ") {
    event.preventDefault();
    session.replay.toggle();
  } else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
    event.preventDefault();
    session.replay.step(event.key === "ArrowLeft" ? -1 : 1);
  }
}

function startApp() {
  const theme = readTheme();
  if (theme !== "system") document.documentElement.dataset.theme = theme;
  document.querySelector(".skip-link").addEventListener("click", (event) => {
    event.preventDefault(); // the export's addresses live behind "#"
    document.getElementById("main").focus();
  });
  document.addEventListener("keydown", onKey);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => window.dispatchEvent(new Event("explorer:theme")));
  drawTop();
  startRouter(showRoute);
}

startApp();
