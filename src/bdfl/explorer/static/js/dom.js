/* Elements of the page, and the small parts every page is made of.
 *
 * Text only ever enters the document as text nodes: names come from scenarios and other people's nodes.
 * Styles are set through the object model, because the content security policy forbids style attributes.
 */

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

/**
 * One HTML element.
 * @param {string} tag
 * @param {Object<string, *>} [attributes] `class`, `title`, …; `style` is an object; `on` maps events to handlers;
 *   true sets an empty attribute, false and null leave it away
 * @param {...(Node|string|number|null|Array)} children strings become text nodes; null is left out
 * @returns {HTMLElement}
 */
export function element(tag, attributes, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

/** One SVG element, as `element`. @returns {SVGElement} */
export function shape(tag, attributes, ...children) {
  return furnish(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);
}

function furnish(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") {
      for (const [property, setting] of Object.entries(value)) node.style.setProperty(property, String(setting));
    } else if (name === "on") {
      for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    } else {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  fill(node, children);
  return node;
}

function fill(node, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) fill(node, child);
    else node.append(child instanceof Node ? child : String(child));
  }
}

/** Puts `children` in place of all that `node` holds. */
export function replaceContent(node, ...children) {
  node.replaceChildren();
  fill(node, children);
  return node;
}

/** Sets text only where it differs, so that live numbers cost nothing while they stay. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * A card: a section with a heading, an optional sentence under it and tools at its right.
 * @param {string} title
 * @param {{note?: string, tools?: Node[], wide?: boolean, class?: string, id?: string}} options
 */
export function card(title, options, ...children) {
  return element(
    "section",
    { class: `card ${options.wide ? "wide" : ""} ${options.class || ""}`.trim(), id: options.id, "aria-label": title },
    element(
      "div",
      { class: "card-head" },
      element("div", {}, element("h2", {}, title), options.note ? element("p", { class: "card-note" }, options.note) : null),
      options.tools ? element("div", { class: "card-tools" }, options.tools) : null,
    ),
    ...children,
  );
}

/** A number with its label and unit; `note` says what it is measured against. */
export function tile(label, value, note, tone) {
  return element(
    "div",
    { class: `tile ${tone || ""}`.trim() },
    element("dt", {}, label),
    element("dd", {}, value, note ? element("span", { class: "tile-note" }, note) : null),
  );
}

/** A list of tiles (a definition list, so that label and number stay together when read aloud). */
export function tiles(...children) {
  return element("dl", { class: "tiles" }, children);
}

/** A short word in a frame. Tone: good, bad, warn, info, training, upload, mining or nothing. */
export function badge(text, tone, title) {
  return element("span", { class: `badge ${tone || ""}`.trim(), title }, text);
}

/** A line that tells the reader something. Tone: info, warn, bad, good. */
export function notice(tone, ...children) {
  return element("p", { class: `note ${tone}`, role: tone === "bad" ? "alert" : null }, children);
}

/** What stands where nothing is yet. */
export function emptyState(title, ...children) {
  return element("div", { class: "empty-state" }, element("p", { class: "empty-title" }, title), element("p", {}, children));
}

/** A digest or key, shortened in the middle by the eye alone: the whole text stays selectable and in the title. */
export function hashText(digest, length) {
  if (!digest) return element("span", { class: "muted" }, "–");
  const shown = length && digest.length > length ? `${digest.slice(0, length)}…` : digest;
  return element("code", { class: length ? "hash" : "hash whole", title: digest }, shown);
}

/**
 * A table in its own scrolling box.
 * @param {{caption: string, columns: {title: string, unit?: string, isNumber?: boolean, class?: string}[],
 *   rows: (Node|string|number|null)[][], rowClass?: (index: number) => string}} options
 */
export function table(options) {
  const head = element(
    "tr",
    {},
    options.columns.map((column) =>
      element(
        "th",
        { scope: "col", class: `${column.isNumber ? "number" : ""} ${column.class || ""}`.trim() },
        column.title,
        column.unit ? element("span", { class: "unit" }, ` ${column.unit}`) : null,
      ),
    ),
  );
  const body = options.rows.map((row, index) =>
    element(
      "tr",
      { class: options.rowClass ? options.rowClass(index) : null },
      row.map((cell, column) => {
        const kind = options.columns[column];
        const attributes = { class: `${kind.isNumber ? "number" : ""} ${kind.class || ""}`.trim() || null };
        return element("td", attributes, cell === null || cell === undefined ? "–" : cell);
      }),
    ),
  );
  return element(
    "div",
    { class: "table-box", tabindex: "0", role: "region", "aria-label": options.caption },
    element("table", {}, element("caption", { class: "out-of-sight" }, options.caption), element("thead", {}, head), element("tbody", {}, body)),
  );
}

/**
 * Tabs (arrow keys move, as the ARIA practices ask).
 * @param {string} label what is chosen
 * @param {{name: string, title: string}[]} choices
 * @param {string} chosen
 * @param {(name: string) => void} onChoose
 */
export function tabs(label, choices, chosen, onChoose) {
  const buttons = choices.map((choice) =>
    element(
      "button",
      {
        type: "button",
        role: "radio",
        class: "tab",
        "data-name": choice.name,
        "aria-checked": String(choice.name === chosen),
        tabindex: choice.name === chosen ? "0" : "-1",
      },
      choice.title,
    ),
  );
  function choose(button, withFocus) {
    for (const other of buttons) {
      other.setAttribute("aria-checked", String(other === button));
      other.tabIndex = other === button ? 0 : -1;
    }
    if (withFocus) button.focus();
    onChoose(button.dataset.name);
  }
  buttons.forEach((button, index) => {
    button.addEventListener("click", () => choose(button, false));
    button.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      event.stopPropagation();
      choose(buttons[(index + step + buttons.length) % buttons.length], true);
    });
  });
  return element("div", { class: "tabs", role: "radiogroup", "aria-label": label }, buttons);
}

let numFields = 0;

/**
 * A slider with its label, its value in words and its bounds.
 * @param {{label: string, min: number, max: number, step: number|"any", value: number, say: (value: number) => string,
 *   onInput: (value: number) => void, hint?: string}} options
 */
export function slider(options) {
  numFields += 1;
  const id = `field-${numFields}`;
  const output = element("output", { for: id, class: "field-value" }, options.say(options.value));
  const input = element("input", {
    id,
    type: "range",
    min: options.min,
    max: options.max,
    step: options.step,
    value: options.value,
    "aria-valuetext": options.say(options.value),
  });
  input.addEventListener("input", () => {
    const value = Number(input.value);
    output.textContent = options.say(value);
    input.setAttribute("aria-valuetext", options.say(value));
    options.onInput(value);
  });
  return element(
    "div",
    { class: "field" },
    element("label", { for: id }, options.label),
    output,
    input,
    options.hint ? element("span", { class: "field-hint" }, options.hint) : null,
  );
}

/** A button. */
export function button(label, onClick, attributes) {
  return element("button", { type: "button", class: "button", ...attributes, on: { click: onClick } }, label);
}
