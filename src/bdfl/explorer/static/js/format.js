/* Numbers as people read them: few digits, a thin space, the unit. Unknown is a dash, never "NaN" or "null". */

export const UNKNOWN = "–";
const THIN = "\u202f";
const PREFIXES = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
  [1, ""],
  [1e-3, "m"],
  [1e-6, "µ"],
  [1e-9, "n"],
];

// Making a formatter costs a thousand times what using it does.
const FORMATTERS = Array.from({ length: 7 }, (_, decimals) => new Intl.NumberFormat("en", { maximumFractionDigits: decimals }));

function grouped(value, decimals) {
  return FORMATTERS[decimals].format(value).replaceAll(",", THIN);
}

/** Whether `value` is a number that can be shown. */
export function isKnown(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** `value` with about `digits` significant digits and grouped thousands. */
export function sayNumber(value, digits = 3) {
  if (!isKnown(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e9 || size < 1e-4)) return value.toExponential(digits - 1).replace("e", "·10^").replace("^+", "^");
  const decimals = size === 0 ? 0 : Math.max(0, Math.min(6, digits - 1 - Math.floor(Math.log10(size))));
  return grouped(value, decimals);
}

/** A whole number with grouped thousands. */
export function sayCount(value) {
  return isKnown(value) ? grouped(Math.round(value), 0) : UNKNOWN;
}

/** "1 block", "2 blocks". */
export function sayPlural(count, one, many) {
  return `${sayCount(count)} ${count === 1 ? one : many || `${one}s`}`;
}

/** `value` in `unit` with an SI prefix: 2.4 GHz, 13 mJ. */
export function sayUnit(value, unit, digits = 3) {
  if (!isKnown(value)) return UNKNOWN;
  if (value === 0) return `0${THIN}${unit}`;
  const size = Math.abs(value);
  const [factor, prefix] = PREFIXES.find(([least]) => size >= least * 0.9995) || PREFIXES[PREFIXES.length - 1];
  return `${sayNumber(value / factor, digits)}${THIN}${prefix}${unit}`;
}

/** Seconds up to two minutes, then minutes, hours, days. */
export function saySeconds(value, digits = 3) {
  if (!isKnown(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size !== 0 && size < 1) return sayUnit(value, "s", digits);
  if (size < 120) return `${sayNumber(value, digits)}${THIN}s`;
  if (size < 7200) return `${sayNumber(value / 60, digits)}${THIN}min`;
  if (size < 172800) return `${sayNumber(value / 3600, digits)}${THIN}h`;
  return `${sayNumber(value / 86400, digits)}${THIN}d`;
}

/** Milliseconds since 1970 as a date and time in UTC. */
export function sayUtc(timeMs) {
  return isKnown(timeMs) ? new Date(timeMs).toISOString().replace("T", " ").replace("Z", " UTC") : UNKNOWN;
}

/** How long ago that was by this computer's clock: "3 min ago". */
export function sayAge(timeMs, nowMs = Date.now()) {
  if (!isKnown(timeMs)) return UNKNOWN;
  const age = saySeconds(Math.round(Math.abs(nowMs - timeMs) / 1000), 2);
  return nowMs < timeMs ? `in ${age}` : `${age} ago`;
}

/** A share of one as per cent. */
export function sayPercent(value, decimals = 1) {
  return isKnown(value) ? `${(value * 100).toFixed(decimals)}${THIN}%` : UNKNOWN;
}

export function sayEnergy(value) {
  return sayUnit(value, "J");
}

export function sayFrequency(value) {
  return sayUnit(value, "Hz");
}

export function sayPower(value) {
  return sayUnit(value, "W");
}

/** Bits a second. */
export function sayRate(value) {
  return sayUnit(value, "bit/s");
}

export function sayDecibel(value) {
  return isKnown(value) ? `${value.toFixed(1)}${THIN}dB` : UNKNOWN;
}

/** Bytes in powers of 1024, as files are counted. */
export function sayBytes(value) {
  if (!isKnown(value)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  let left = value;
  while (left >= 1024 && power < units.length - 1) {
    left /= 1024;
    power += 1;
  }
  return `${sayNumber(left, 3)}${THIN}${units[power]}`;
}

/** The beginning of a digest. */
export function shortHash(digest, length = 10) {
  return digest ? `${digest.slice(0, length)}…` : UNKNOWN;
}
