/**
 * Which Ed25519 keys and signatures count, where WebCrypto leaves it to the browser: as `bdfl.identity` has it. Keys are
 * canonical points of edwards25519, and neither they nor the R of a signature are of small order.
 */
const FIELD = 2n ** 255n - 19n;
const CURVE = 37095705934669439343138083508754565189542113879843219016388785533085940283555n; // -121665 / 121666
const OF_ORDER_8 = 0x05fc536d880238b13933c6d305acdfd5f098eff289f4c345b027b2c28f95e826n;
const SMALL_ORDER = new Set([0n, 1n, FIELD - 1n, OF_ORDER_8, FIELD - OF_ORDER_8, FIELD, FIELD + 1n]);

/** The y of an encoded point as it stands; the topmost bit is the sign of x. */
function readY(bytes) {
  let number = 0n;
  for (let place = 31; place >= 0; place--) number = (number << 8n) | BigInt(bytes[place]);
  return BigInt.asUintN(255, number);
}

function isSquare(number) {
  let [result, base] = [1n, ((number % FIELD) + FIELD) % FIELD];
  for (let exponent = (FIELD - 1n) / 2n; exponent > 0n; exponent >>= 1n) {
    if (exponent & 1n) result = (result * base) % FIELD;
    base = (base * base) % FIELD;
  }
  return result === 1n;
}

/** Tells if 32 bytes are a key that a member may have. */
export function isPublicKey(bytes) {
  const y = readY(bytes);
  return y < FIELD && !SMALL_ORDER.has(y) && isSquare((y * y - 1n) * (CURVE * y * y + 1n));
}

/** Tells if the key signed the message: a promise. `imported` gives the key as WebCrypto has it, null where it has none. */
export async function isEd25519(publicKey, signature, message, imported) {
  if (SMALL_ORDER.has(readY(publicKey)) || SMALL_ORDER.has(readY(signature))) return false;
  const key = await imported(publicKey);
  return key !== null && crypto.subtle.verify({ name: "Ed25519" }, key, signature, message);
}
