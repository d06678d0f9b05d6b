// JSON without loss: integers that no number of JavaScript holds exactly are read as `BigInt`, and written as they were.

const MARK = Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("-"); // no text of others has it
const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?/g; // strings and whole numbers, so that a fraction is no integer
const LARGE = /^-?\d{16,}$/;
const MARKED = new RegExp(`"${MARK}(-?\\d+)"`, "g");
const MAY_BE_LARGE = /\d{16}/;

/** Return the value of a text.
 *
 * Throws a SyntaxError.
 */
export function parseJson(text) {
  if (!MAY_BE_LARGE.test(text)) return JSON.parse(text);
  JSON.parse(text); // an error names a place in the text as it is
  const marked = text.replace(TOKEN, (token) => (LARGE.test(token) && !Number.isSafeInteger(Number(token)) ? `"${MARK}${token}"` : token));
  return JSON.parse(marked, (_name, value) => (typeof value === "string" && value.startsWith(MARK) ? BigInt(value.slice(MARK.length)) : value));
}

/** Return a value as text. */
export function jsonText(value, indent) {
  return JSON.stringify(value, (_name, part) => (typeof part === "bigint" ? `${MARK}${part}` : part), indent)?.replace(MARKED, "$1");
}

/** Return the integer that a text has, such as `42` or `-0x1f`. */
export function integerOf(text) {
  const [, sign, digits] = /^([-+]?)(.*)$/.exec(text.replaceAll("_", ""));
  const value = sign === "-" ? -BigInt(digits) : BigInt(digits);
  return Number.isSafeInteger(Number(value)) ? Number(value) : value;
}
