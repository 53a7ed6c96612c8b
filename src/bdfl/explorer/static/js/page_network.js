import { element } from "./dom.js";

export async function showNetwork(root, route, context) {
  root.append(element("h1", {}, "Network"));
}
