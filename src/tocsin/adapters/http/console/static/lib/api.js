// The HTTP API, as any script may use it. The session's cookie authenticates; a change carries the session's CSRF token.

import { jsonText, parseJson } from "./json.js";

/** Without an answer, at a limit of rate, and at a gateway or server that is busy or begins. An error of the server itself stays. */
const PASSING = new Set([0, 429, 502, 503, 504]);
/** What an address names does not exist, or has an invalid value. */
const MISTAKES = new Set([400, 404, 422]);
const RETRY_MS = 2000; // twice as long after each further failure
const MAX_RETRY_MS = 60_000;
const MAX_WAIT_MS = 86_400_000; // a browser's timer ends at once after 25 days
let csrfToken = null;
let onSignedOut = () => {};
let onTokenRefused = () => {};

/** A problem (RFC 9457) with which the API refused a request, or the reason why it could not be reached. */
export class Problem extends Error {
  constructor(status, body, waitMs = 0) {
    super(body.detail || body.title || `the API answered with status ${status}`);
    this.status = status;
    this.waitMs = waitMs; // the least pause before the same request
    this.code = (body.type || "").split(/[:/#]/).pop() || `status-${status}`;
    this.errors = Array.isArray(body.errors) ? body.errors : [];
  }
}

/** Return whether the same request may succeed later. */
export function isPassing(problem) {
  return PASSING.has(problem.status);
}

/** Return whether the same request fails until something changes that the address names. */
export function isMistake(problem) {
  return MISTAKES.has(problem.status);
}

/** Return the milliseconds before a request is sent again that has failed a number of times: `most`, or as the server says.
 *
 * They are random, because all readers fail together.
 */
export function pauseAfter(problem, failures, most = MAX_RETRY_MS) {
  const random = 1 + Math.random();
  const pause = (Math.min(RETRY_MS * 2 ** failures, most) / 2) * random;
  return Math.max(pause, problem.waitMs && problem.waitMs + RETRY_MS * random);
}

/** Return the milliseconds of `Retry-After`, which holds seconds or a date. */
function waitOf(headers) {
  const written = headers.get("Retry-After") || "";
  const wait = /^\d+$/.test(written) ? 1000 * Number(written) : Date.parse(written) - Date.now();
  return Math.min(Math.max(wait || 0, 0), MAX_WAIT_MS);
}

/** Send a CSRF token with changes. `ended`: called if there is no session any more; `refused`: if it is another. */
export function keepToken(token, { ended, refused }) {
  csrfToken = token;
  onSignedOut = ended;
  onTokenRefused = refused;
}

/** Return the path of a resource, with its query. Undefined and empty values are left out; a list repeats its name. */
export function path(parts, query = {}) {
  const encoded = Array.isArray(parts) ? parts.map((part) => encodeURIComponent(part)).join("/") : parts;
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") search.append(name, one);
    }
  }
  const text = search.toString();
  return text ? `${encoded}?${text}` : encoded;
}

/** Return the path of a resource of version 1 of the API: `v1(["jobs", name], {limit: 5})`. */
export function v1(parts, query) {
  return `/v1/${path(parts, query)}`;
}

/** Send a request, and return the JSON of the answer with its `ETag`.
 *
 * Throws a Problem.
 */
export async function request(method, url, { body, headers = {}, signal } = {}) {
  const sent = { Accept: "application/json", ...headers };
  if (body !== undefined) sent["Content-Type"] = "application/json";
  if (method !== "GET") {
    if (csrfToken) sent["X-CSRF-Token"] = csrfToken;
    if (method === "POST") sent["Idempotency-Key"] ??= newKey();
  }
  let answer;
  let text;
  try {
    answer = await fetch(url, {
      method,
      headers: sent,
      body: body === undefined ? undefined : jsonText(body),
      credentials: "same-origin",
      signal,
    });
    text = await answer.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "The API cannot be reached.", type: "unreachable" });
  }
  let parsed = null;
  try {
    parsed = text ? parseJson(text) : null;
  } catch {
    // an answer that a proxy wrote
  }
  if (!answer.ok) {
    if (answer.status === 401) onSignedOut();
    const problem = new Problem(answer.status, parsed || {}, waitOf(answer.headers));
    if (problem.code === "csrf-token") onTokenRefused();
    throw problem;
  }
  return { value: parsed, etag: answer.headers.get("ETag") };
}

export async function get(url, options) {
  return (await request("GET", url, options)).value;
}

export async function post(url, body, options = {}) {
  return (await request("POST", url, { body, ...options })).value;
}

/** Trigger a job, and return the id of the execution. Without `args`, those of the job count. After a lost answer, the same `key` starts no second one. */
export async function trigger(job, { input, args = null }, reason, key) {
  const body = { input, args, reason: reason || null, trigger: "manual" };
  return (await post(v1(["jobs", job, "trigger"]), body, { headers: { "Idempotency-Key": key } })).execution_id;
}

/** A reason may hold any text, and a header only ASCII (RFC 8187). */
export function reasonHeader(reason) {
  return reason ? { "X-Reason": `UTF-8''${encodeURIComponent(reason)}` } : {};
}

/** A key with which a repeated POST has no second effect. */
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
