// Values that a text describes.

import { malformed } from "./input.js";

/** Require that no part of a value occurs twice in it.
 *
 * An alias of YAML repeats a part. A few lines of aliases of aliases become gigabytes when they are written as JSON.
 */
export function requireTree(value) {
  const seen = new Set();
  const rest = [value];
  while (rest.length > 0) {
    const part = rest.pop();
    if (part === null || typeof part !== "object") continue;
    if (seen.has(part)) throw malformed("Write each part out: aliases of YAML (*name) are not accepted.");
    seen.add(part);
    for (const inner of Object.values(part)) rest.push(inner);
  }
}
