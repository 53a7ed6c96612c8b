/* The pages, and how one plugs in.
 *
 * A page is a function `show(root, route, context)`, which may be async:
 *   root     an empty element of class "page"; put an <h1> into it as early as possible (it receives the focus)
 *   route    {page, path, height, client, query}: see router.js
 *   context  see `makeContext` in app.js:
 *     run, overview (the newest /index.json), rounds (RoundStore: rows by height, windows for charts),
 *     position (height shown in replay), tip, progress (0..1 of the round after `position`), isReplay, status,
 *     signal (aborted when the page is left: give it to getJson, addEventListener, …),
 *     setPosition(height), onPosition(f), onFrame(f), onRows(f), onStatus(f), onOverview(f): f() is called until the page
 *     is left; replay (isPlaying, isFollowing, …).
 * Errors thrown are shown in place of the page. Draw what is known before the first `await`, reserve heights.
 * Links: `link("/block/12", "block 12")` of router.js. Text: `element`/`card`/`table`/… of dom.js. Numbers: format.js.
 * Curves: `new ChartGroup(…)` of charts.js. A new page is one import and one line below.
 */

import { showOverview } from "./page_overview.js";
import { showNetwork } from "./page_network.js";
import { showBlocks } from "./page_blocks.js";
import { showBlock } from "./page_block.js";
import { showClient } from "./page_client.js";
import { showModel } from "./page_model.js";
import { showWhatIf } from "./page_what_if.js";
import { showCompare } from "./page_compare.js";

/** page name → [title, show] */
export const PAGES = {
  overview: [() => "Overview", showOverview],
  network: [() => "Network", showNetwork],
  blocks: [() => "Blocks", showBlocks],
  block: [(route) => `Block ${route.height}`, showBlock],
  client: [(route) => `Client ${route.client}`, showClient],
  model: [(route) => `Model after block ${route.height}`, showModel],
  "what-if": [(route) => (route.height === null ? "What if" : `What if, round ${route.height}`), showWhatIf],
  compare: [() => "Compare", showCompare],
};

/** Entries of the navigation: [page names it stands for, text, address at a position]. */
export const NAVIGATION = [
  [["overview"], "Overview", () => "/"],
  [["network"], "Network", () => "/network"],
  [["blocks", "block"], "Blocks", () => "/blocks"],
  [["client"], "Clients", () => "/client/0"],
  [["model"], "Models", (position) => `/model/${position}`],
  [["what-if"], "What if", () => "/what-if"],
  [["compare"], "Compare", () => "/compare"],
];
