/** Model files and their aggregation, bit for bit: FORMAT.md, section 6. */
import { require } from "./encoding.mjs";

const DISTANCE_BLOCK = 16_384;
const MOST_GROUPS = 200_000n;

function byName(one, other) {
  return Buffer.compare(Buffer.from(one.name), Buffer.from(other.name));
}

function entriesOf(tensor) {
  return tensor.shape.reduce((product, size) => product * size, 1n);
}

/** Header and size of all files of these tensors, and where each tensor's numbers begin: in the file, and in the order of genesis. */
export function fileForm(tensors) {
  const starts = new Map();
  let at = 0n;
  const parts = [...tensors].sort(byName).map((tensor) => {
    starts.set(tensor.name, at);
    const end = at + 4n * entriesOf(tensor);
    const text = `${JSON.stringify(tensor.name)}:{"dtype":"F32","shape":[${tensor.shape}],"data_offsets":[${at},${end}]}`;
    at = end;
    return text;
  });
  const text = Buffer.from(`{${parts.join(",")}}`);
  const padded = Buffer.concat([text, Buffer.alloc((8 - (text.length % 8)) % 8, " ")]);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(padded.length));
  const head = Buffer.concat([length, padded]);
  return { head, starts, size: BigInt(head.length) + at, tensors };
}

/** All numbers of a file in the order of genesis. */
export function readModel(data, form) {
  const { head, starts, tensors } = form;
  require(BigInt(data.length) === form.size, "blob-model", "size");
  require(data.subarray(0, head.length).equals(head), "blob-model", "header");
  const numbers = new Float32Array((data.length - head.length) / 4);
  let place = 0;
  for (const tensor of tensors) {
    let at = head.length + Number(starts.get(tensor.name));
    for (let left = Number(entriesOf(tensor)); left > 0; left--, at += 4) numbers[place++] = data.readFloatLE(at);
  }
  require(numbers.every(Number.isFinite), "blob-model", "not finite");
  return numbers;
}

export function writeModel(numbers, form) {
  const data = Buffer.alloc(Number(form.size));
  form.head.copy(data);
  let place = 0;
  for (const tensor of form.tensors) {
    let at = form.head.length + Number(form.starts.get(tensor.name));
    for (let left = Number(entriesOf(tensor)); left > 0; left--, at += 4) data.writeFloatLE(numbers[place++], at);
  }
  return data;
}

const MICRO = 1e6;
const LARGEST = (2 - 2 ** -23) * 2 ** 127;
const PARAMETERS = { momentum: ["rate", "beta"], adam: ["rate", "beta1", "beta2", "epsilon"] };

/** The rule in a law, and the server's optimizer with its parameters in millionths; null: there is none. */
export function readRule(text) {
  const none = { rule: text, server: null };
  const [rule, kind, ...words] = text.split(" ");
  const names = Object.hasOwn(PARAMETERS, kind ?? "") ? PARAMETERS[kind] : null;
  if (names === null || words.length !== names.length) return none;
  const numbers = [];
  for (const [place, name] of names.entries()) {
    const found = words[place].match(/^([a-z0-9]+)=(0|[1-9][0-9]{0,9})e-6$/);
    if (found === null || found[1] !== name) return none;
    const number = Number(found[2]);
    if (name.startsWith("beta") ? number >= MICRO : number < 1 || number > 1000 * MICRO) return none;
    numbers.push(number);
  }
  return { rule, server: { kind, numbers, numFiles: kind === "adam" ? 3n : 2n } };
}

/** The weights of a global model and its moments; those before the first step for a file of weights alone. */
export function readState(server, data, form) {
  if (BigInt(data.length) === form.size) {
    const weights = readModel(data, form);
    const epsilon = server.numbers.at(-1) / MICRO;
    const first = [weights, new Float32Array(weights.length)];
    return server.kind === "adam" ? [...first, new Float32Array(weights.length).fill(epsilon * epsilon)] : first;
  }
  require(BigInt(data.length) === form.size * server.numFiles, "model-parent", "size");
  const size = Number(form.size);
  const rows = Array.from({ length: Number(server.numFiles) }, (_, row) => readModel(data.subarray(row * size, (row + 1) * size), form));
  require(server.kind !== "adam" || rows[2].every((number) => number >= 0), "model-parent", "a moment below 0");
  return rows;
}

/** The bytes of the global model after a round. */
export function takeStep(server, state, aggregate, form) {
  const rows = state.map((row) => new Float32Array(row.length));
  for (let at = 0; at < aggregate.length; at++) {
    const found = (server.kind === "adam" ? adam : momentum)(server.numbers, aggregate[at], ...state.map((row) => row[at]));
    found.forEach((number, row) => (rows[row][at] = Math.min(Math.max(number, -LARGEST), LARGEST)));
  }
  return Buffer.concat(rows.map((row) => writeModel(row, form)));
}

function momentum([rate, beta], aggregate, weight, moment) {
  const next = (beta / MICRO) * moment + (weight - aggregate);
  return [weight - (rate / MICRO) * next, next];
}

function adam([rate, beta1, beta2, epsilon], aggregate, weight, mean, square) {
  const gap = aggregate - weight;
  const first = (beta1 / MICRO) * mean + ((MICRO - beta1) / MICRO) * gap;
  const second = (beta2 / MICRO) * square + ((MICRO - beta2) / MICRO) * (gap * gap);
  return [weight + ((rate / MICRO) * first) / (Math.sqrt(second) + epsilon / MICRO), first, second];
}

/** The fewest updates that a rule can do with; null: there is no such rule. */
export function fewestUpdates(rule, faulty) {
  if (rule === "mean") return faulty === 0n ? 1n : null;
  if (["median", "trimmed-mean", "minimum-diameter"].includes(rule)) return 2n * faulty + 1n;
  return ["krum", "multi-krum"].includes(rule) ? 2n * faulty + 3n : null;
}

/** Tells if minimum-diameter has few enough groups among so many. */
export function isBearable(rule, faulty, num) {
  if (rule !== "minimum-diameter" || faulty > BigInt(num)) return true;
  let ways = 1n;
  const fewer = faulty < BigInt(num) - faulty ? faulty : BigInt(num) - faulty;
  for (let place = 1n; place <= fewer; place++) {
    ways = (ways * (BigInt(num) - fewer + place)) / place;
    if (ways > MOST_GROUPS) return false;
  }
  return true;
}

/** The numbers that a rule makes of vectors of numbers in client order. */
export function aggregate(rule, faulty, vectors, samples) {
  const count = vectors.length;
  switch (rule) {
    case "mean":
      return weighted(vectors, samples, samples.reduce((sum, one) => sum + one, 0));
    case "median":
      return byCoordinate(vectors, (v) => (v[(count - 1) >> 1] + v[count >> 1]) / 2 + 0.0);
    case "trimmed-mean":
      return byCoordinate(vectors, (v) => {
        let sum = 0;
        for (let place = faulty; place < count - faulty; place++) sum += v[place];
        return sum / (count - 2 * faulty);
      });
    case "krum":
      return vectors[byScore(vectors, faulty)[0]];
    case "multi-krum":
      return plainMean(vectors, byScore(vectors, faulty).slice(0, count - faulty).sort((one, other) => one - other));
    default:
      return plainMean(vectors, closestGroup(vectors, count - faulty));
  }
}

function weighted(vectors, weights, total) {
  const result = new Float32Array(vectors[0].length);
  for (let at = 0; at < result.length; at++) {
    let sum = 0;
    for (let one = 0; one < vectors.length; one++) sum += weights[one] * vectors[one][at];
    result[at] = sum / total;
  }
  return result;
}

function plainMean(vectors, chosen) {
  return weighted(chosen.map((place) => vectors[place]), chosen.map(() => 1), chosen.length);
}

function byCoordinate(vectors, reduce) {
  const values = new Float64Array(vectors.length);
  return Float32Array.from(vectors[0], (_, at) => {
    for (let one = 0; one < vectors.length; one++) values[one] = vectors[one][at];
    return reduce(values.sort());
  });
}

function distance(first, second) {
  let total = 0;
  for (let start = 0; start < first.length; start += DISTANCE_BLOCK) {
    let width = Math.min(DISTANCE_BLOCK, first.length - start);
    const gaps = new Float64Array(width);
    for (let at = 0; at < width; at++) {
      const gap = second[start + at] - first[start + at];
      gaps[at] = gap * gap;
    }
    while (width > 1) {
      const half = (width + 1) >> 1;
      for (let at = 0; at < width - half; at++) gaps[at] += gaps[half + at];
      width = half;
    }
    total += gaps[0];
  }
  return total;
}

function distances(vectors) {
  const found = vectors.map(() => new Float64Array(vectors.length));
  for (let one = 0; one < vectors.length; one++)
    for (let other = one + 1; other < vectors.length; other++)
      found[one][other] = found[other][one] = distance(vectors[one], vectors[other]);
  return found;
}

/** Places of vectors by Krum's score, the first of equals first. */
function byScore(vectors, faulty) {
  const scores = distances(vectors).map((row, own) => {
    const others = row.filter((_, place) => place !== own).sort();
    let score = 0;
    for (let place = 0; place < vectors.length - faulty - 2; place++) score += others[place];
    return score;
  });
  return [...scores.keys()].sort((one, other) => scores[one] - scores[other] || one - other);
}

function closestGroup(vectors, size) {
  const apart = distances(vectors);
  let [best, least] = [null, Infinity];
  for (const group of groups(vectors.length, size)) {
    let widest = 0;
    for (const one of group) for (const other of group) widest = Math.max(widest, apart[one][other]);
    if (best === null || widest < least) [best, least] = [group, widest];
  }
  return best;
}

/** All ways to choose `size` of `count` places, in lexicographic order. */
function* groups(count, size, first = 0) {
  if (size === 0) yield [];
  for (let place = first; size > 0 && place <= count - size; place++)
    for (const rest of groups(count, size - 1, place + 1)) yield [place, ...rest];
}
