// Definitions of jobs as YAML.

import { malformed } from "./input.js";
import { integerOf } from "./json.js";

/** Load the reader of YAML when the first editor is shown. */
const yaml = () => import("../vendor/js-yaml.js");

const MOST = 200_000; // characters; the API refuses larger definitions

/** Return a schema in which integers are exact, however large they are. */
function exact(schema, { Type, types }) {
  const { resolve, predicate } = types.int;
  return schema.extend({
    implicit: [
      new Type("tag:yaml.org,2002:int", {
        kind: "scalar",
        resolve,
        construct: integerOf,
        predicate: (value) => typeof value === "bigint" || predicate(value),
        represent: String,
      }),
    ],
  });
}

/** Return a definition as YAML, without the fields that say nothing. An empty input of a step says something: null is that of the job. */
export async function textOf(definition) {
  const library = await yaml();
  const kept = (fields, saysNothing) => Object.fromEntries(Object.entries(fields).filter(([, value]) => !saysNothing(value)));
  const isNull = (value) => value === null;
  const isEmpty = (value) => isNull(value) || (typeof value === "object" && Object.keys(value).length === 0);
  const written = kept(definition, isEmpty);
  if (written.dag) written.dag = written.dag.map((step) => kept(step, isNull));
  return library.dump(written, { lineWidth: 100, noRefs: true, schema: exact(library.DEFAULT_SCHEMA, library) });
}

/** Return the definition of one job that a text has.
 *
 * Throws an error with the code `malformed`.
 */
export async function definitionOf(text) {
  if (text.length > MOST) throw malformed(`The text is longer than ${MOST.toLocaleString("en")} characters.`);
  const library = await yaml();
  let definition;
  try {
    definition = library.load(text, { schema: exact(library.JSON_SCHEMA, library) });
  } catch (problem) {
    throw malformed(`This is not YAML: ${problem.message}`);
  }
  if (!definition || typeof definition !== "object" || Array.isArray(definition)) throw malformed("Write the fields of one job.");
  requireTree(definition);
  return definition;
}

/** Require that no part of a value occurs twice in it.
 *
 * An alias of YAML repeats a part. A few lines of aliases of aliases become gigabytes when they are written as JSON.
 */
function requireTree(value) {
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
