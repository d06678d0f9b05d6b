// Live updates: one event stream for the whole console. A page names the events after which it loads its data again.
//
// A page is loaded at most once in REST_MS, however many events come: 500 events a second cost one request a second. The
// next load waits for the last, so that a slow answer is shown although events go on, and rests nine times as long as the
// last took, so that a page keeps the API busy for a tenth of the time at most. A page is loaded again after each of
// SETTLE_MS since the last event, because the history follows the log with a delay that grows under load. After a lost stream
// a page is loaded as after an event, but later by a random factor, because all pages of all readers lose it together. After
// a failure that may pass, a page is loaded again too: after `Retry-After` at the earliest, and after the page's interval or
// when the stream is back at the latest. So a page is current within seconds after the server is back, however long it was
// away.
//
// A page that is hidden follows no stream, and is loaded again when it is shown.

import { useCallback, useEffect, useRef, useState } from "./html.js";
import { get, isMistake, isPassing, pauseAfter, v1 } from "./api.js";
import { parseJson } from "./json.js";
import { follow } from "./stream.js";

const REST_MS = 1000;
const REST_SHARE = 9;
const SETTLE_MS = [2500, 10_000, 40_000];
const RECONNECT_MS = 5000;
const POLL_MS = 15_000; // for callers without the event stream
const listeners = new Set();
const watchers = new Set();
const resources = new Set();
let end = null; // of the stream that is followed
let wasOpen = false;
let isPermitted = true;
let session = "";
let state = "connecting";

function tell(next) {
  state = next;
  for (const watch of watchers) watch(next);
}

/** Say whether the caller may read the event stream, and the name of the session. Otherwise pages are loaded again at intervals. */
export function permitStream(is, name) {
  isPermitted = is;
  session = name;
}

/** Follow the event stream as long as somebody listens. */
export function listen(listener) {
  listeners.add(listener);
  connect();
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0) disconnect();
  };
}

function connect() {
  if (end || document.hidden || !isPermitted || listeners.size === 0) return;
  end = follow(session, TYPES, { opened, lost, received });
}

function opened() {
  tell("live");
  // Events may have passed meanwhile.
  if (wasOpen) for (const refresh of resources) refresh();
  wasOpen = true;
}

function lost(isOver) {
  tell("reconnecting");
  if (isOver) {
    // The server refused, and the browser would neither try again nor say why. A refused token leads to the sign-in.
    disconnect();
    get(v1("me")).catch(() => {});
    setTimeout(connect, RECONNECT_MS);
  }
}

function disconnect() {
  end?.();
  end = null;
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) connect();
  else if (end) {
    disconnect();
    tell("connecting");
  }
});
addEventListener("pagehide", disconnect); // a shared worker does not learn that a window is gone

function received(type, data) {
  let stored;
  try {
    stored = parseJson(data);
  } catch {
    return;
  }
  for (const listener of listeners) listener(type, stored);
}

/** The types of all events of the stream. An `EventSource` hears only those that it names; a test compares the list. */
const TYPES = [
  "acknowledged", "acquired", "admitted", "advanced", "cancelled", "completed", "cron.answer", "cron.missed",
  "cron.skipped", "cron.triggered", "dead-lettered", "defined", "deleted", "dependencies-settled", "dispatched", "due",
  "exhausted", "failed", "fanned-out", "lease-extended", "passed", "paused", "planned", "proposed", "queued", "quorum-settled",
  "recovered", "refused", "released", "replayed", "resolved", "resumed", "retry-scheduled", "skipped", "started",
];

/** Return the state of the event stream: connecting, live or reconnecting. */
export function useLiveState() {
  const [current, setCurrent] = useState(state);
  useEffect(() => {
    watchers.add(setCurrent);
    setCurrent(state);
    return () => watchers.delete(setCurrent);
  }, []);
  return current;
}

/** Load a resource, and again after events that `concerns` accepts, and every `every` milliseconds while the last value `needs` it.
 *
 * After an error that may pass, it is loaded again, and after one of the server at the next interval. One that stays, such as that of an
 * unknown name, waits for an event or `reload`.
 * Returns `{value, error, reload}`. The last value stays while a newer one is loaded or cannot be.
 */
export function useResource(url, { concerns = null, every = 0, needs = () => true } = {}) {
  const [loaded, setLoaded] = useState({ url: null, value: null, error: null });
  const running = useRef(null);
  const again = useRef(null);
  const failures = useRef(0);
  const earliest = useRef(0);
  const wanted = useRef(null);
  const isNeeded = loaded.error ? !isPassing(loaded.error) && !isMistake(loaded.error) : loaded.value === null || needs(loaded.value);
  wanted.current = { concerns, isNeeded };

  const load = useCallback(async () => {
    if (!url) return;
    earliest.current = 0;
    running.current?.abort();
    const control = (running.current = new AbortController());
    try {
      const value = await get(url, { signal: control.signal });
      if (running.current === control) setLoaded({ url, value, error: null });
    } catch (error) {
      if (error.name === "AbortError" || running.current !== control) return;
      earliest.current = performance.now() + (error.waitMs || 0);
      setLoaded((last) => ({ url, value: last.url === url ? last.value : null, error }));
    }
  }, [url]);

  useEffect(() => {
    load();
    return () => running.current?.abort();
  }, [load]);

  const isLive = concerns !== null;
  const interval = every || (isLive && !isPermitted ? POLL_MS : 0);
  useEffect(() => {
    let timer = null;
    let settling = null;
    let isResting = false;
    let isStale = isLive && document.hidden; // it hears nothing yet
    let isGone = false;
    const refresh = () => {
      if (performance.now() < earliest.current) return; // it is loaded later
      if (document.hidden || isResting) {
        isStale = true;
        return;
      }
      isResting = true;
      isStale = false;
      const begun = performance.now();
      load().then(() => {
        const took = performance.now() - begun;
        const rest = () => {
          isResting = false;
          if (isStale && !isGone) refresh();
        };
        if (!isGone) timer = setTimeout(rest, Math.max(REST_MS - took, REST_SHARE * took));
      });
    };
    const turned = () => {
      if (document.hidden) isStale ||= isLive; // it hears nothing until it is shown
      else if (isStale) refresh();
    };
    const settle = ([delay, ...later]) => {
      clearTimeout(settling);
      settling = setTimeout(() => {
        refresh();
        if (later.length) settle(later.map((next) => next - delay));
      }, delay);
    };
    again.current = refresh;
    const changed = () => {
      refresh();
      settle(SETTLE_MS);
    };
    const reopened = () => {
      const spread = 1 + Math.random();
      if (isLive || failures.current > 0) settle(SETTLE_MS.map((delay) => delay * spread));
    };
    const stop = isLive ? listen((type, stored) => wanted.current.concerns?.(type, stored) && changed()) : () => {};
    resources.add(reopened);
    const repeat = interval ? setInterval(() => wanted.current.isNeeded && refresh(), interval) : null;
    document.addEventListener("visibilitychange", turned);
    return () => {
      isGone = true;
      stop();
      resources.delete(reopened);
      clearTimeout(timer);
      clearTimeout(settling);
      clearInterval(repeat);
      document.removeEventListener("visibilitychange", turned);
    };
  }, [load, isLive, interval]);

  useEffect(() => {
    failures.current = loaded.url === url && loaded.error ? failures.current + 1 : 0;
    if (failures.current === 0 || !isPassing(loaded.error)) return undefined;
    const timer = setTimeout(() => again.current(), pauseAfter(loaded.error, failures.current, interval ? Math.max(interval, RECONNECT_MS) : undefined));
    return () => clearTimeout(timer);
  }, [loaded, url, interval]);

  const isCurrent = loaded.url === url;
  return { value: isCurrent ? loaded.value : null, error: isCurrent ? loaded.error : null, reload: load };
}

/** The types of events that change the definition of a job. */
export const DEFINITION_CHANGES = new Set(["defined", "paused", "resumed", "deleted"]);

/** Return whether an event is of a job. */
export function isOfJob(name) {
  return (_type, stored) => stored.fact?.job === name || stored.fact?.data?.cron_name === name;
}
