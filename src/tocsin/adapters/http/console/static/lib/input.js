// What a person types.

import { parseJson } from "./json.js";

/** Return an error that says what is wrong with a text. */
export function malformed(message) {
  return Object.assign(new Error(message), { code: "malformed" });
}

/** Return the value that a text has as JSON; null: the text is empty.
 *
 * Throws an error with the code `malformed`.
 */
export function jsonOf(text) {
  if (!text?.trim()) return null;
  try {
    return parseJson(text);
  } catch (error) {
    throw malformed(`The input is not JSON: ${error.message}`);
  }
}
