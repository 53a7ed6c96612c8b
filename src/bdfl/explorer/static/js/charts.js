/* Curves that share one cursor, one axis (seconds or rounds) and one zoom. Wraps the global `uPlot`.
 *
 * const group = new ChartGroup({signal, isTimed: true});
 * root.append(group.toolbar(), group.add(chart), group.add(chart));
 * group.setData(data, numShown, reach);   // data: {round: [...], time_s: [...], …}; numShown rows of it are drawn
 *
 * A chart: {id, title, note, kind: "lines" | "stack" | "heat", say(value), series(data) → [{label, colour, values,
 * dash?, isStepped?}], isRobust? (outliers may leave the frame), limit?: {value, label}, least?, most?, readout?(data, index, series), height?, wide?,
 * tableColumns?}. `colour` is a custom property ("--curve-0"). A heat chart's `series` has one entry per strip, and
 * `scale`: "sequential" | "diverging" | "budget" with `sayScale`.
 */

import { card, element, replaceContent, setText, table } from "./dom.js";
import { UNKNOWN, isKnown, sayCount, sayNumber, saySeconds } from "./format.js";

const TIME_STEPS_S = [
  0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200,
  14400, 21600, 43200, 86400, 172800, 432000, 864000, 1728000, 4320000, 8640000,
];
const ROUND_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000];
const MOST_TABLE_ROWS = 40;
const HEAT = {
  // Cividis' way from dark blue to yellow: the same order in grey and for any colour vision.
  sequential: [[0, 32, 76], [49, 68, 107], [102, 105, 112], [149, 143, 120], [203, 186, 105], [255, 233, 69]],
  diverging: [[184, 82, 0], [229, 151, 86], [246, 211, 178], [240, 242, 245], [176, 212, 236], [86, 160, 209], [0, 92, 148]],
};
const OVER = [204, 34, 60];
const NOTHING = [128, 140, 154];

let numGroups = 0;

const coloursByProperty = new Map(); // of the theme of the moment: asking the browser costs a layout

/** The value of a custom colour property as canvases understand it, in the theme of the moment. */
export function colourOf(property) {
  let colour = coloursByProperty.get(property);
  if (!colour) {
    colour = askColour(property);
    coloursByProperty.set(property, colour);
  }
  return colour;
}

function askColour(property) {
  const probe = element("span", { style: { color: `var(${property})`, display: "none" } });
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

/** The colour of client or run number `index`, as a custom property. */
export function curveColour(index) {
  return `--curve-${index % 8}`;
}

function heatColour(scale, value, least, most) {
  if (!isKnown(value)) return NOTHING;
  if (scale === "budget" && value > 1.0005) return OVER;
  const stops = HEAT[scale === "diverging" ? "diverging" : "sequential"];
  const share = Math.max(0, Math.min(1, (value - least) / (most - least || 1))) * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(share));
  return stops[low].map((channel, index) => channel + (stops[low + 1][index] - channel) * (share - low));
}

/** A pixel as canvases hold it in memory (little-endian everywhere a browser runs). */
function pixelOf(colour) {
  return ((255 << 24) | (Math.round(colour[2]) << 16) | (Math.round(colour[1]) << 8) | Math.round(colour[0])) >>> 0;
}

/** The pixels of 256 steps from the least to the most. */
function pixelScale(scale) {
  return Uint32Array.from({ length: 256 }, (_, step) => pixelOf(heatColour(scale, step / 255, 0, 1)));
}

function rgb(colour) {
  return `rgb(${colour.map(Math.round).join(" ")})`;
}

/** Index of the last entry of a rising column that is at most `value`, or -1. */
function lastAtMost(column, value) {
  let low = 0;
  let high = column.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (column[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** `value` of the rising column `from`, carried over to the column `to` beside it. */
function carryOver(from, to, value) {
  if (!from.length) return value;
  const index = lastAtMost(from, value);
  const before = index < 0 ? [0, 0] : [from[index], to[index]];
  const after = index + 1 < from.length ? [from[index + 1], to[index + 1]] : null;
  if (!after || after[0] === before[0]) return before[1];
  return before[1] + ((after[1] - before[1]) * (value - before[0])) / (after[0] - before[0]);
}

/** A time on the axis, in the unit that suits the axis' end. */
function sayTimeTick(value_s, most_s) {
  const [factor, unit] = most_s < 240 ? [1, "s"] : most_s < 14400 ? [60, "min"] : most_s < 345600 ? [3600, "h"] : [86400, "d"];
  return `${sayNumber(value_s / factor, 4)}\u202f${unit}`;
}

/** The value that a share of all values lies below, from a sample of them. */
function quantile(columns, share) {
  const sample = [];
  for (const column of columns) {
    const step = Math.max(1, Math.floor(column.length / 200));
    for (let index = 0; index < column.length; index += step) if (isKnown(column[index])) sample.push(column[index]);
  }
  sample.sort((a, b) => a - b);
  return sample.length ? sample[Math.min(sample.length - 1, Math.floor(share * sample.length))] : null;
}

export class ChartGroup {
  /**
   * @param {{signal: AbortSignal, isTimed?: boolean, onZoom?: (first: number, last: number, isWhole: boolean) => void,
   *   onPick?: (round: number) => void}} options `onZoom` gets rounds; `onPick` the round under the cursor (Enter, click)
   */
  constructor(options) {
    numGroups += 1;
    this.key = `charts-${numGroups}`;
    this.options = options;
    this.axis = options.isTimed === false ? "rounds" : "seconds";
    this.charts = [];
    this.data = { round: [], time_s: [] };
    this.numShown = 0;
    this.whole = [0, 1]; // the axis unzoomed
    this.range = null; // zoomed part of the axis
    this.sync = uPlot.sync(this.key);
    this.pending = 0;
    this.restTimer = 0;
    this.observer = new ResizeObserver(() => this.drawSoon());
    // What is out of sight is drawn when it comes into sight: a replay at full speed has no time to lose.
    this.sight = new IntersectionObserver((entries) => this.onSight(entries), { rootMargin: "300px" });
    const retheme = () => {
      coloursByProperty.clear();
      for (const chart of this.charts) this.rebuild(chart);
    };
    window.addEventListener("explorer:theme", retheme, { signal: options.signal });
    options.signal.addEventListener("abort", () => this.destroy(), { once: true });
  }

  onSight(entries) {
    for (const entry of entries) {
      const chart = this.charts.find((one) => one.plot.parentElement === entry.target);
      if (chart) chart.isInSight = entry.isIntersecting;
    }
    this.drawSoon();
  }

  /** Switch of the axis and buttons for the zoom. */
  toolbar() {
    const choice = (axis) =>
      element("button", { type: "button", role: "radio", class: "tab", "data-axis": axis, "aria-checked": String(this.axis === axis), tabindex: this.axis === axis ? "0" : "-1" }, axis);
    const buttons = [choice("seconds"), choice("rounds")];
    const choose = (button) => {
      for (const other of buttons) {
        other.setAttribute("aria-checked", String(other === button));
        other.tabIndex = other === button ? 0 : -1;
      }
      this.setAxis(button.dataset.axis);
    };
    for (const [index, button] of buttons.entries()) {
      button.addEventListener("click", () => choose(button));
      button.addEventListener("keydown", (event) => {
        if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(event.key)) return;
        event.preventDefault();
        choose(buttons[1 - index]);
        buttons[1 - index].focus();
      });
    }
    const tool = (label, text, act) => element("button", { type: "button", class: "button zoom", "aria-label": label, title: label, on: { click: act } }, text);
    this.resetButton = tool("Show the whole run", "Whole run", () => this.zoomTo(null));
    this.resetButton.disabled = this.range === null;
    return element(
      "div",
      { class: "chart-toolbar" },
      element("div", { class: "tabs", role: "radiogroup", "aria-label": "Axis of all curves" }, buttons),
      element("div", { class: "zoom-buttons", role: "group", "aria-label": "Zoom of all curves" }, tool("Zoom in", "+", () => this.zoomBy(0.5)), tool("Zoom out", "−", () => this.zoomBy(2)), this.resetButton),
      element("p", { class: "muted chart-hint" }, "Drag to zoom, double-click for the whole run; Ctrl + wheel, or + and − on a focused chart."),
    );
  }

  /** A card with the chart in it. */
  add(spec) {
    const readout = element("p", { class: "chart-readout", "aria-live": "off" });
    const plot = element("div", { class: "chart-plot", tabindex: "0", role: "img", "data-keys": true, "data-chart": spec.id, "aria-label": `${spec.title}: no data yet.`, style: { height: `${spec.height || 210}px` } });
    const legend = element("div", { class: "legend chart-legend" });
    const tablePlace = element("div", { class: "chart-table", hidden: true, style: { height: `${spec.height || 210}px` } });
    const toggle = element("button", { type: "button", class: "button quiet", "aria-pressed": "false" }, "Table");
    const chart = { spec, readout, plot, legend, tablePlace, toggle, uplot: null, shown: null, isTable: false, isInSight: false };
    toggle.addEventListener("click", () => {
      chart.isTable = !chart.isTable;
      toggle.setAttribute("aria-pressed", String(chart.isTable));
      setText(toggle, chart.isTable ? "Chart" : "Table");
      plot.hidden = chart.isTable;
      tablePlace.hidden = !chart.isTable;
      this.drawSoon();
    });
    plot.addEventListener("keydown", (event) => this.onKey(chart, event));
    plot.addEventListener("wheel", (event) => this.onWheel(chart, event), { passive: false });
    plot.addEventListener("touchmove", (event) => this.onTouch(chart, event), { passive: true });
    this.charts.push(chart);
    this.observer.observe(plot);
    const node = card(spec.title, { note: spec.note, tools: [toggle], class: "chart", wide: spec.wide, id: spec.id ? `chart-${spec.id}` : undefined }, readout, plot, tablePlace, legend);
    this.sight.observe(node);
    return node;
  }

  /**
   * New rows. `numShown` of them are drawn (the replay's position); `reach` is the last round of the axis, with its time,
   * where that lies beyond the rows.
   */
  setData(data, numShown, reach) {
    const isNew = data !== this.data;
    this.data = data;
    this.numShown = numShown;
    const last = data.round.length - 1;
    const ends = { rounds: last < 0 ? 1 : data.round[last], seconds: last < 0 ? 1 : data.time_s[last] };
    if (reach) {
      ends.rounds = Math.max(ends.rounds, reach.round);
      ends.seconds = Math.max(ends.seconds, reach.time_s);
    }
    this.ends = ends;
    this.whole = this.wholeRange();
    if (isNew) for (const chart of this.charts) chart.shown = null;
    this.drawSoon();
  }

  wholeRange() {
    const ends = this.ends || { rounds: 1, seconds: 1 };
    return this.axis === "rounds" ? [0, Math.max(1, ends.rounds)] : [0, ends.seconds || 1];
  }

  setAxis(axis) {
    if (axis === this.axis) return;
    const { round, time_s } = this.data;
    const [from, to] = axis === "rounds" ? [time_s, round] : [round, time_s];
    if (this.range) this.range = this.range.map((value) => carryOver(from, to, value));
    this.axis = axis;
    this.whole = this.wholeRange();
    for (const chart of this.charts) this.rebuild(chart);
  }

  /** Zooms to a part of the axis; null shows all. */
  zoomTo(range) {
    if (range) {
      const least = this.axis === "rounds" ? 2 : (this.whole[1] - this.whole[0]) * 1e-6;
      let [low, high] = range;
      if (high - low < least) [low, high] = [(low + high - least) / 2, (low + high + least) / 2];
      const width = Math.min(high - low, this.whole[1] - this.whole[0]);
      low = Math.max(this.whole[0], Math.min(low, this.whole[1] - width));
      range = width >= (this.whole[1] - this.whole[0]) * 0.999 ? null : [low, low + width];
    }
    this.range = range;
    if (this.resetButton) this.resetButton.disabled = range === null;
    this.drawSoon();
    if (this.options.onZoom) {
      const [low, high] = range || this.whole;
      const asRound = (value) => (this.axis === "rounds" ? value : carryOver(this.data.time_s, this.data.round, value));
      this.options.onZoom(Math.max(1, Math.floor(asRound(low))), Math.ceil(asRound(high)), range === null);
    }
  }

  /** Zooms by a factor around a share (0..1) of what is shown. */
  zoomBy(factor, around = 0.5) {
    const [low, high] = this.range || this.whole;
    const centre = low + (high - low) * around;
    this.zoomTo([centre - (centre - low) * factor, centre + (high - centre) * factor]);
  }

  panBy(share) {
    if (!this.range) return;
    const [low, high] = this.range;
    this.zoomTo([low + (high - low) * share, high + (high - low) * share]);
  }

  onWheel(chart, event) {
    if (!chart.uplot || !(event.ctrlKey || event.metaKey || document.activeElement === chart.plot)) return;
    event.preventDefault();
    const box = chart.uplot.over.getBoundingClientRect();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.panBy(event.deltaX / box.width);
    else this.zoomBy(event.deltaY > 0 ? 1.25 : 0.8, Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)));
  }

  onTouch(chart, event) {
    if (!chart.uplot || event.touches.length !== 1) return;
    const box = chart.uplot.over.getBoundingClientRect();
    chart.uplot.setCursor({ left: event.touches[0].clientX - box.left, top: event.touches[0].clientY - box.top });
  }

  onKey(chart, event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !chart.uplot) return;
    const { uplot } = chart;
    const xs = uplot.data[0];
    let isTaken = true;
    if (event.key === "+" || event.key === "=") this.zoomBy(0.5, this.cursorShare(uplot));
    else if (event.key === "-") this.zoomBy(2, this.cursorShare(uplot));
    else if (event.key === "0" || event.key === "Escape") this.zoomTo(null);
    else if (event.shiftKey && event.key === "ArrowLeft") this.panBy(-0.2);
    else if (event.shiftKey && event.key === "ArrowRight") this.panBy(0.2);
    else if ((event.key === "ArrowLeft" || event.key === "ArrowRight") && xs.length) {
      const index = Math.max(0, Math.min(xs.length - 1, (uplot.cursor.idx ?? xs.length - 1) + (event.key === "ArrowLeft" ? -1 : 1)));
      uplot.setCursor({ left: Math.round(uplot.valToPos(xs[index], "x")), top: uplot.over.clientHeight / 2 });
    } else if (event.key === "Enter" && this.options.onPick && isKnown(uplot.cursor.idx)) this.options.onPick(this.data.round[this.rowUnder(chart)]);
    else isTaken = false;
    if (isTaken) {
      event.preventDefault();
      event.stopPropagation();
    }
  }

  /** The row under the cursor. */
  rowUnder(chart) {
    return Math.max(0, chart.uplot.cursor.idx - (chart.spec.kind === "stack" ? 1 : 0));
  }

  cursorShare(uplot) {
    const left = uplot.cursor.left;
    return left >= 0 ? left / uplot.over.clientWidth : 0.5;
  }

  drawSoon() {
    if (this.pending) return;
    this.pending = window.requestAnimationFrame(() => {
      this.pending = 0;
      for (const chart of this.charts) if (chart.isInSight) this.draw(chart);
      window.clearTimeout(this.restTimer);
      this.restTimer = window.setTimeout(() => {
        for (const chart of this.charts) if (!chart.isInSight) this.draw(chart);
      }, 400);
    });
  }

  rebuild(chart) {
    if (chart.uplot) chart.uplot.destroy();
    chart.uplot = null;
    chart.shown = null;
    this.drawSoon();
  }

  /** Columns of a chart for all rows, made once per data. */
  columnsOf(chart) {
    if (chart.shown) return chart.shown;
    const { spec } = chart;
    const series = spec.series(this.data);
    let columns = series.map((one) => one.values);
    if (spec.kind === "stack") {
      const sums = new Array(this.data.round.length).fill(0);
      columns = columns.map((column) => column.map((value, index) => (sums[index] += value || 0)));
    }
    let least = spec.least ?? Infinity;
    let most = spec.most ?? -Infinity;
    if (spec.least === undefined || spec.most === undefined) {
      for (const column of columns) {
        for (const value of column) {
          if (!isKnown(value)) continue;
          if (spec.least === undefined && value < least) least = value;
          if (spec.most === undefined && value > most) most = value;
        }
      }
      if (spec.limit && spec.most === undefined) most = Math.max(most, spec.limit.value);
      if (spec.limit && spec.least === undefined) least = Math.min(least, spec.limit.value);
    }
    if (spec.isRobust) {
      // The first rounds swing so far that all later ones would look alike.
      least = Math.min(quantile(columns, 0.04) ?? least, spec.limit ? spec.limit.value : Infinity);
      most = Math.max(quantile(columns, 0.96) ?? most, spec.limit ? spec.limit.value : -Infinity);
    }
    if (!isKnown(least)) least = 0;
    if (!isKnown(most) || most <= least) most = least + 1;
    if (spec.scale === "diverging") {
      most = Math.max(Math.abs(least), Math.abs(most));
      least = -most;
    } else if (spec.kind !== "heat") {
      const room = (most - least) * 0.06;
      if (spec.most === undefined) most += room;
      if (spec.least === undefined && !(least >= 0 && least < room)) least -= room;
    }
    chart.shown = { series, columns, least, most };
    this.drawLegend(chart);
    return chart.shown;
  }

  draw(chart) {
    if (this.options.signal.aborted) return;
    const { spec, plot } = chart;
    const shown = this.columnsOf(chart);
    if (chart.isTable) {
      this.drawTable(chart);
      return;
    }
    const width = plot.clientWidth;
    const height = plot.clientHeight;
    if (width < 40 || height < 40) return;
    const xs = (this.axis === "rounds" ? this.data.round : this.data.time_s).slice(0, this.numShown);
    // A heat chart needs rows for uPlot to find the cursor in, not their curves.
    const columns = spec.kind === "heat" ? [shown.columns.length ? shown.columns[0].slice(0, this.numShown) : xs.map(() => null)] : shown.columns.map((column) => column.slice(0, this.numShown));
    const drawn = spec.kind === "stack" ? columns.reverse() : columns;
    if (spec.kind === "stack" && xs.length) {
      // A step reaches back to the row before: the first one needs a beginning.
      xs.unshift(this.axis === "rounds" ? xs[0] - 1 : this.data.first > 1 ? xs[0] : 0);
      for (const column of drawn) column.unshift(column[0]);
    }
    if (chart.uplot && chart.numSeries !== drawn.length) this.rebuild(chart);
    if (!chart.uplot) {
      chart.numSeries = drawn.length;
      chart.uplot = new uPlot(this.optionsOf(chart, width, height), [xs, ...drawn], plot);
    } else {
      if (chart.uplot.width !== width || chart.uplot.height !== height) chart.uplot.setSize({ width, height });
      chart.uplot.setData([xs, ...drawn], true);
    }
    this.describe(chart);
    this.drawReadout(chart);
  }

  optionsOf(chart, width, height) {
    const { spec } = chart;
    const soft = colourOf("--soft");
    const line = colourOf("--line");
    const surface = colourOf("--surface");
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const isTimed = this.axis === "seconds";
    const series = chart.shown.series.map((one) => {
      const colour = colourOf(one.colour || "--accent");
      return {
        label: one.label,
        stroke: spec.kind === "stack" ? surface : colour,
        fill: spec.kind === "stack" ? colour : undefined,
        width: spec.kind === "stack" ? 0 : one.width || 2,
        dash: one.dash ? [5, 4] : undefined,
        spanGaps: true,
        points: { show: (uplot) => spec.kind !== "stack" && uplot.data[0].length < 2, size: 7, fill: colour },
        paths: spec.kind === "stack" || one.isStepped ? uPlot.paths.stepped({ align: -1 }) : undefined,
      };
    });
    if (spec.kind === "stack") series.reverse();
    const shownSeries = spec.kind === "heat" ? [{ stroke: "transparent", width: 0, points: { show: false } }] : series;
    return {
      width,
      height,
      padding: [8, 26, 0, 0],
      legend: { show: false },
      cursor: {
        y: spec.kind === "heat",
        sync: { key: this.key, setSeries: false, scales: ["x", null] },
        drag: { x: true, y: false, setScale: false },
        points: { show: spec.kind === "lines", size: 7 },
        bind: { dblclick: () => () => this.zoomTo(null) },
      },
      scales: {
        x: { time: false, range: () => this.range || this.whole },
        y: { dir: spec.kind === "heat" ? -1 : 1, range: () => (spec.kind === "heat" ? [0, chart.shown.series.length] : [chart.shown.least, chart.shown.most]) },
      },
      series: [{}, ...shownSeries],
      axes: [
        {
          stroke: soft,
          font,
          grid: { show: spec.kind !== "heat", stroke: line, width: 1 },
          ticks: { stroke: line, width: 1, size: 5 },
          size: 30,
          space: 64,
          incrs: isTimed ? TIME_STEPS_S : ROUND_STEPS,
          values: (uplot, ticks) => ticks.map((tick) => (isTimed ? sayTimeTick(tick, ticks[ticks.length - 1]) : sayCount(tick))),
        },
        {
          stroke: soft,
          font,
          grid: { show: spec.kind !== "heat", stroke: line, width: 1 },
          ticks: { show: false },
          size: 58,
          space: 30,
          ...(spec.kind === "heat"
            ? {
                splits: () => {
                  const num = chart.shown.series.length;
                  const step = Math.max(1, Math.ceil(num / Math.max(1, Math.floor(height / 22))));
                  return Array.from({ length: Math.ceil(num / step) }, (_, index) => index * step + 0.5);
                },
                values: (uplot, ticks) => ticks.map((tick) => (chart.shown.series[Math.floor(tick)] || { short: "" }).short || String(Math.floor(tick))),
              }
            : { values: (uplot, ticks) => ticks.map((tick) => (spec.sayTick || spec.say)(tick)) }),
        },
      ],
      hooks: {
        setSelect: [
          (uplot) => {
            if (uplot.select.width < 4) return;
            const low = uplot.posToVal(uplot.select.left, "x");
            const high = uplot.posToVal(uplot.select.left + uplot.select.width, "x");
            uplot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
            this.zoomTo([low, high]);
          },
        ],
        setCursor: [() => this.drawReadout(chart)],
        drawClear: spec.kind === "heat" ? [(uplot) => this.paintHeat(chart, uplot)] : [],
        draw: [(uplot) => this.paintMarks(chart, uplot)],
      },
    };
  }

  /** One pixel column after another: as fast for 100,000 rounds as for ten. */
  paintHeat(chart, uplot) {
    const { spec, shown } = chart;
    const { left, top, width, height } = uplot.bbox;
    const num = shown.series.length;
    const xs = uplot.data[0];
    if (!num || !xs.length || width < 1) return;
    const canvas = chart.canvas || document.createElement("canvas");
    chart.canvas = canvas;
    canvas.width = Math.round(width);
    canvas.height = num;
    const brush = canvas.getContext("2d");
    const image = brush.createImageData(canvas.width, num);
    const pixels = new Uint32Array(image.data.buffer);
    const scale = pixelScale(spec.scale);
    const [over, nothing] = [pixelOf(OVER), pixelOf(NOTHING)];
    const { least, most } = shown;
    const [low, high] = this.range || this.whole;
    const start = this.axis === "rounds" ? xs[0] - (xs[1] - xs[0] || 1) : 0;
    let before = -2;
    let beforeX = 0;
    for (let x = 0; x < canvas.width; x += 1) {
      const place = low + ((x + 0.5) / canvas.width) * (high - low);
      if (place > xs[xs.length - 1] || place < start) continue;
      const index = Math.min(xs.length - 1, lastAtMost(xs, place) + 1);
      for (let y = 0; y < num; y += 1) {
        const row = y * canvas.width;
        if (index === before) {
          pixels[row + x] = pixels[row + beforeX];
          continue;
        }
        const value = shown.columns[y][index];
        if (typeof value !== "number") pixels[row + x] = nothing;
        else if (spec.scale === "budget" && value > 1.0005) pixels[row + x] = over;
        else pixels[row + x] = scale[Math.max(0, Math.min(255, Math.round((255 * (value - least)) / (most - least))))];
      }
      before = index;
      beforeX = x;
    }
    brush.putImageData(image, 0, 0);
    const { ctx } = uplot;
    ctx.save();
    ctx.imageSmoothingEnabled = false;
    ctx.drawImage(canvas, left, top, width, height);
    ctx.strokeStyle = colourOf("--surface");
    ctx.lineWidth = num > 24 ? 1 : 2;
    ctx.beginPath();
    for (let row = 1; row < num; row += 1) {
      const y = Math.round(top + (row * height) / num) + 0.5;
      ctx.moveTo(left, y);
      ctx.lineTo(left + width, y);
    }
    ctx.stroke();
    ctx.restore();
  }

  /** The limit and the place the replay stands at. */
  paintMarks(chart, uplot) {
    const { spec, shown } = chart;
    const { ctx, bbox } = uplot;
    ctx.save();
    if (spec.limit && spec.kind !== "heat" && spec.limit.value >= shown.least && spec.limit.value <= shown.most) {
      const y = Math.round(uplot.valToPos(spec.limit.value, "y", true)) + 0.5;
      ctx.strokeStyle = colourOf("--ink");
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
    }
    const xs = uplot.data[0];
    if (xs.length && this.numShown < this.data.round.length) {
      const x = Math.round(uplot.valToPos(xs[xs.length - 1], "x", true)) + 0.5;
      if (x >= bbox.left && x <= bbox.left + bbox.width) {
        ctx.setLineDash([]);
        ctx.strokeStyle = colourOf("--accent");
        ctx.lineWidth = 1.5 * devicePixelRatio;
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
      }
    }
    ctx.restore();
  }

  drawLegend(chart) {
    const { spec, shown, legend } = chart;
    const parts = [];
    if (spec.kind === "heat") {
      const stops = Array.from({ length: 9 }, (_, index) => rgb(heatColour(spec.scale, shown.least + ((shown.most - shown.least) * index) / 8, shown.least, shown.most)));
      const say = spec.sayScale || spec.say;
      parts.push(
        element("span", {}, (spec.isRobust ? "≤ " : "") + say(shown.least), element("i", { class: "heat-scale", style: { background: `linear-gradient(90deg, ${stops.join(", ")})` } }), (spec.isRobust ? "≥ " : "") + say(shown.most)),
        spec.scale === "budget" ? element("span", {}, element("i", { class: "swatch", style: { background: rgb(OVER) } }), "over budget") : null,
      );
    } else if (shown.series.length > 1 || spec.limit) {
      for (const one of shown.series) parts.push(element("span", {}, element("i", { class: "swatch", style: { background: `var(${one.colour})` } }), one.label));
      if (spec.limit) parts.push(element("span", {}, element("i", { class: "swatch dashed" }), spec.limit.label));
    }
    replaceContent(legend, parts);
  }

  /** What stands under the cursor, or at the end. */
  drawReadout(chart) {
    const { spec, uplot, readout, shown } = chart;
    if (!uplot || !shown) return;
    const isHovered = isKnown(uplot.cursor.idx) && uplot.cursor.left >= 0;
    const index = isHovered ? this.rowUnder(chart) : this.numShown - 1;
    if (index < 0 || index >= this.data.round.length) {
      setText(readout, "\u00a0");
      return;
    }
    const where = `block ${sayCount(this.data.round[index])} · ${saySeconds(this.data.time_s[index], 4)}`;
    let what;
    if (spec.kind === "heat" && isHovered && uplot.cursor.top >= 0 && uplot.root.matches(":hover")) {
      const strip = shown.series[Math.floor(uplot.posToVal(uplot.cursor.top, "y"))];
      what = strip ? `${strip.label} ${spec.say(strip.values[index])}` : "";
    } else if (spec.readout) what = spec.readout(this.data, index, shown.series);
    else what = shown.series.map((one) => (shown.series.length > 1 ? `${one.label} ` : "") + spec.say(one.values[index])).join(" · ");
    setText(readout, `${where}: ${what}`);
  }

  describe(chart) {
    const { spec, shown, plot } = chart;
    const last = this.numShown - 1;
    if (last < 0) {
      plot.setAttribute("aria-label", `${spec.title}: no data yet.`);
      return;
    }
    const what = spec.readout ? spec.readout(this.data, last, shown.series) : shown.series.slice(0, 8).map((one) => `${one.label} ${spec.say(one.values[last])}`).join(", ");
    plot.setAttribute("aria-label", `${spec.title} over ${this.numShown} rows up to block ${this.data.round[last]}. Newest: ${what}. Plus and minus zoom, arrows move the cursor; the button “Table” shows the numbers.`);
  }

  drawTable(chart) {
    const { spec, shown } = chart;
    const xs = this.axis === "rounds" ? this.data.round : this.data.time_s;
    const [low, high] = this.range || this.whole;
    const from = Math.max(0, lastAtMost(xs, low));
    const to = Math.min(this.numShown - 1, lastAtMost(xs, high));
    const step = Math.max(1, Math.ceil((to - from + 1) / MOST_TABLE_ROWS));
    const rows = [];
    const isMany = shown.series.length > 10;
    for (let index = to; index >= from; index -= step) {
      const row = [sayCount(this.data.round[index]), saySeconds(this.data.time_s[index], 4)];
      if (isMany) {
        const known = shown.series.map((one, number) => [one.values[index], number]).filter(([value]) => isKnown(value)).sort((a, b) => a[0] - b[0]);
        const named = (entry) => (entry ? `${spec.say(entry[0])} (${shown.series[entry[1]].label})` : UNKNOWN);
        row.push(named(known[0]), known.length ? spec.say(known[known.length >> 1][0]) : UNKNOWN, named(known[known.length - 1]));
      } else for (const one of shown.series) row.push(spec.say(one.values[index]));
      rows.push(row);
    }
    const titles = isMany ? ["Lowest", "Median", "Highest"] : shown.series.map((one) => one.label);
    replaceContent(
      chart.tablePlace,
      table({ caption: `${spec.title}, newest first`, columns: [{ title: "Block", isNumber: true }, { title: "Time", isNumber: true }, ...titles.map((title) => ({ title, isNumber: true }))], rows }),
    );
  }

  destroy() {
    window.cancelAnimationFrame(this.pending);
    window.clearTimeout(this.restTimer);
    this.observer.disconnect();
    this.sight.disconnect();
    for (const chart of this.charts) if (chart.uplot) chart.uplot.destroy();
    this.charts = [];
  }
}
