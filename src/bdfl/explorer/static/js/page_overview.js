import { element } from "./dom.js";

export async function showOverview(root, route, context) {
  root.append(element("h1", {}, "Overview"));
}
