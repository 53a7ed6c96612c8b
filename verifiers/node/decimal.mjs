/**
 * Decimal numbers of 40 digits, every operation rounded half to even: FORMAT.md, section 7. A number is a whole `c` times
 * ten to the `e`; whole numbers enter exactly, however long they are.
 */
const DIGITS = 40;

export class Decimal {
  constructor(c, e = 0) {
    this.c = c;
    this.e = e;
  }

  plus(other) {
    const e = Math.min(this.e, other.e);
    return rounded(scaled(this, e) + scaled(other, e), e);
  }

  minus(other) {
    return this.plus(new Decimal(-other.c, other.e));
  }

  times(other) {
    return rounded(this.c * other.c, this.e + other.e);
  }

  over(other) {
    const quotient = ratio(this.c, other.c);
    return new Decimal(quotient.c, quotient.e + this.e - other.e);
  }

  isAbove(other) {
    const e = Math.min(this.e, other.e);
    return scaled(this, e) > scaled(other, e);
  }

  /** The nearest whole number, half to even. */
  count() {
    return this.e >= 0 ? this.c * 10n ** BigInt(this.e) : divideEven(this.c, 10n ** BigInt(-this.e));
  }

  /** The natural logarithm, correctly rounded, of a number of at least 1. */
  ln() {
    if (this.c === 10n ** BigInt(Math.max(0, -this.e)) && this.e <= 0) return new Decimal(0n);
    for (let bits = 400; ; bits *= 2) {
      const [value, error] = logarithm(this, BigInt(bits));
      if (value <= error) continue;
      const [low, high] = [value - error, value + error].map((bound) => ratio(bound, 1n << BigInt(bits)));
      if (low.c === high.c && low.e === high.e) return low;
    }
  }
}

/** A whole number as it is. */
export function whole(number) {
  return new Decimal(BigInt(number));
}

export function tenTo(exponent) {
  return new Decimal(1n, exponent);
}

function scaled(number, e) {
  return number.c * 10n ** BigInt(number.e - e);
}

function divideEven(number, by) {
  const isNegative = number < 0n;
  const size = isNegative ? -number : number;
  let quotient = size / by;
  const rest = 2n * (size % by);
  if (rest > by || (rest === by && quotient & 1n)) quotient += 1n;
  return isNegative ? -quotient : quotient;
}

function numDigits(number) {
  return (number < 0n ? -number : number).toString().length;
}

function rounded(c, e) {
  const extra = numDigits(c) - DIGITS;
  if (extra <= 0) return new Decimal(c, e);
  const found = divideEven(c, 10n ** BigInt(extra));
  // 99.99.. became 100.00..: a digit more, which is a zero
  return numDigits(found) > DIGITS ? new Decimal(found / 10n, e + extra + 1) : new Decimal(found, e + extra);
}

/** numerator / denominator, both above 0 or the former 0, rounded once. */
function ratio(numerator, denominator) {
  const shift = Math.max(0, DIGITS + 3 + numDigits(denominator) - numDigits(numerator));
  const widened = numerator * 10n ** BigInt(shift);
  const isExact = widened % denominator === 0n;
  // what is left behind counts as a digit beyond all others, so that no tie is seen where there is none
  return rounded((widened / denominator) * 10n + (isExact ? 0n : 1n), -shift - 1);
}

const logarithmsOfTwo = new Map();

/** ln in units of 2^-bits, and how far off it may be: k ln 2 + 2 artanh((m - 1) / (m + 1)) for x = m 2^k, 1 <= m < 2. */
function logarithm({ c, e }, bits) {
  const [numerator, denominator] = e >= 0 ? [c * 10n ** BigInt(e), 1n] : [c, 10n ** BigInt(-e)];
  let k = BigInt(numerator.toString(2).length - denominator.toString(2).length);
  if (numerator < denominator << k) k -= 1n;
  const power = denominator << k;
  const fraction = ((numerator - power) << bits) / (numerator + power);
  if (!logarithmsOfTwo.has(bits)) logarithmsOfTwo.set(bits, 2n * artanh((1n << bits) / 3n, bits));
  const found = k * logarithmsOfTwo.get(bits) + 2n * artanh(fraction, bits);
  return [found, 1n << 20n]; // some hundred terms, each off by less than two units, and k < 1000
}

function artanh(fraction, bits) {
  const square = (fraction * fraction) >> bits;
  let [sum, term] = [0n, fraction];
  for (let odd = 1n; term > 0n; odd += 2n) {
    sum += term / odd;
    term = (term * square) >> bits;
  }
  return sum;
}
