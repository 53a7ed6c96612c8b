/* Small drawings that need no zoom: points and lines in a plane, drawn anew at every width so that text keeps its size. */

import { element, replaceContent, shape } from "./dom.js";
import { sayNumber } from "./format.js";

/** Round numbers that divide a range into about `count` parts. */
export function roundTicks(least, most, count) {
  const span = most - least;
  if (!(span > 0)) return [least];
  const raw = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= raw);
  const ticks = [];
  for (let tick = Math.ceil(least / step) * step; tick <= most + step * 1e-9; tick += step) ticks.push(Math.abs(tick) < step * 1e-9 ? 0 : tick);
  return ticks;
}

/** A box that draws itself with `draw(width)` whenever its width changes. */
export function widthBox(attributes, draw) {
  const box = element("div", { class: "width-box", ...attributes });
  let drawn = 0;
  const observer = new ResizeObserver(() => {
    const width = Math.floor(box.clientWidth);
    if (width < 1 || width === drawn) return;
    drawn = width;
    replaceContent(box, draw(width));
  });
  observer.observe(box);
  return box;
}

/**
 * Lines with points: one figure with its axes and a legend.
 * @param {{label: string, xTitle: string, yTitle: string, height?: number, sayX?: Function, sayY?: Function,
 *   withZeroX?: boolean, withZeroY?: boolean,
 *   series: {name: string, colour: string, points: {x: number, y: number, title?: string, isMarked?: boolean}[],
 *   withPoints?: boolean, isDashed?: boolean}[]}} options
 */
export function planeFigure(options) {
  const series = options.series
    .map((one) => ({ ...one, points: one.points.filter((point) => Number.isFinite(point.x) && Number.isFinite(point.y)) }))
    .filter((one) => one.points.length > 0);
  const figure = element("figure", { class: "plane-figure" });
  if (series.length === 0) {
    figure.append(element("p", { class: "muted" }, "Nothing to draw yet."));
    return figure;
  }
  figure.append(
    widthBox({ role: "img", "aria-label": options.label }, (width) => drawPlane(series, options, width)),
    element(
      "figcaption",
      { class: "legend" },
      series.map((one) => element("span", {}, element("span", { class: "swatch", style: { background: one.colour } }), one.name)),
    ),
  );
  return figure;
}

function rangeOf(values, withZero) {
  let least = Math.min(...values);
  let most = Math.max(...values);
  if (withZero) [least, most] = [Math.min(0, least), Math.max(0, most)];
  if (least === most) [least, most] = [least - Math.abs(least || 1) * 0.5, most + Math.abs(most || 1) * 0.5];
  const pad = (most - least) * 0.06;
  return [withZero && least === 0 ? 0 : least - pad, most + pad];
}

function drawPlane(series, options, width) {
  const height = options.height ?? 280;
  const [left, right, top, bottom] = [62, 14, 12, 44];
  const all = series.flatMap((one) => one.points);
  const [xLeast, xMost] = rangeOf(all.map((point) => point.x), options.withZeroX);
  const [yLeast, yMost] = rangeOf(all.map((point) => point.y), options.withZeroY);
  const placeX = (x) => left + ((x - xLeast) / (xMost - xLeast)) * (width - left - right);
  const placeY = (y) => height - bottom - ((y - yLeast) / (yMost - yLeast)) * (height - top - bottom);
  const sayX = options.sayX ?? sayNumber;
  const sayY = options.sayY ?? sayNumber;
  return shape(
    "svg",
    { class: "plane", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    roundTicks(yLeast, yMost, 5).map((tick) => [
      shape("line", { class: "plane-grid", x1: left, x2: width - right, y1: placeY(tick), y2: placeY(tick) }),
      shape("text", { class: "plane-tick", x: left - 8, y: placeY(tick) + 4, "text-anchor": "end" }, sayY(tick)),
    ]),
    roundTicks(xLeast, xMost, Math.max(3, Math.floor(width / 110))).map((tick) => [
      shape("line", { class: "plane-grid", x1: placeX(tick), x2: placeX(tick), y1: top, y2: height - bottom }),
      shape("text", { class: "plane-tick", x: Math.min(placeX(tick), width), y: height - bottom + 17, "text-anchor": placeX(tick) > width - 34 ? "end" : "middle" }, sayX(tick)),
    ]),
    shape("text", { class: "plane-title", x: width - right, y: height - 7, "text-anchor": "end" }, options.xTitle),
    shape("text", { class: "plane-title", x: 12, y: top + 4, "text-anchor": "end", transform: `rotate(-90 12 ${top + 4})` }, options.yTitle),
    series.map((one) => [
      shape("path", {
        class: "plane-line",
        d: one.points.map((point, place) => `${place ? "L" : "M"}${placeX(point.x).toFixed(1)} ${placeY(point.y).toFixed(1)}`).join(""),
        style: { stroke: one.colour },
        "stroke-dasharray": one.isDashed ? "5 4" : null,
      }),
      one.points
        .filter((point) => one.withPoints || point.isMarked)
        .map((point) =>
          shape(
            "circle",
            { class: point.isMarked ? "plane-point marked" : "plane-point", cx: placeX(point.x), cy: placeY(point.y), r: point.isMarked ? 7 : 4, style: { fill: one.colour } },
            point.title ? shape("title", {}, point.title) : null,
          ),
        ),
    ]),
  );
}

/**
 * Differences with their intervals: one row each, zero in the middle of attention.
 * @param {{label: string, unit: string, rows: {name: string, mean: number, halfWidth: number|null}[], say: Function}} options
 */
export function forestFigure(options) {
  return widthBox({ role: "img", "aria-label": options.label }, (width) => drawForest(options, width));
}

function drawForest({ rows, unit, say }, width) {
  const isNarrow = width < 600; // then the interval stands under its name and number
  const rowHeight = isNarrow ? 50 : 34;
  const height = rows.length * rowHeight + 42;
  const ends = rows.flatMap((row) => [row.mean - (row.halfWidth ?? 0), row.mean + (row.halfWidth ?? 0)]);
  const [least, most] = rangeOf([...ends, 0], false);
  const left = isNarrow ? 14 : Math.min(250, width * 0.3) + 8;
  const right = isNarrow ? width - 14 : width - 198;
  const placeX = (x) => left + ((x - least) / (most - least)) * (right - left);
  return shape(
    "svg",
    { class: "plane forest", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    roundTicks(least, most, Math.max(2, Math.floor((right - left) / 100))).map((tick) => [
      shape("line", { class: tick === 0 ? "forest-zero" : "plane-grid", x1: placeX(tick), x2: placeX(tick), y1: isNarrow ? 22 : 4, y2: height - 34 }),
      shape("text", { class: "plane-tick", x: placeX(tick), y: height - 18, "text-anchor": "middle" }, say(tick)),
    ]),
    unit ? shape("text", { class: "plane-title", x: right, y: height - 3, "text-anchor": "end" }, unit) : null,
    rows.map((row, place) => {
      const middle = place * rowHeight + (isNarrow ? 34 : rowHeight / 2 + 2);
      const words = isNarrow ? middle - 18 : middle + 4;
      const isSure = row.halfWidth !== null && Math.abs(row.mean) > row.halfWidth;
      return shape(
        "g",
        { class: isSure ? "forest-row sure" : "forest-row" },
        shape("text", { class: "forest-name", x: 0, y: words }, row.name),
        row.halfWidth === null ? null : shape("line", { class: "forest-interval", x1: placeX(row.mean - row.halfWidth), x2: placeX(row.mean + row.halfWidth), y1: middle, y2: middle }),
        shape("rect", { class: "forest-mean", x: placeX(row.mean) - 5, y: middle - 5, width: 10, height: 10 }),
        shape("text", { class: "forest-value", x: width, y: words, "text-anchor": "end" }, `${row.mean > 0 ? "+" : ""}${say(row.mean)}${row.halfWidth === null ? "" : ` ± ${say(row.halfWidth)}`}`),
      );
    }),
  );
}
