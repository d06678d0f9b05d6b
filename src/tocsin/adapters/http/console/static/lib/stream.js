// The event stream of this window: the one of a shared worker, or its own where the browser has no shared workers.
//
// A browser has six connections to a server over HTTP/1.1 for all of its windows together. So the windows of a session share a
// stream, or six of them would leave no connection for requests.
//
// A browser may end a shared worker, and says so to no window. So a window sends a beat, which a worker that runs answers.

const STREAM = "/v1/events";
const WORKER = "/console/assets/lib/stream-worker.js";
const BEAT_MS = 10_000;
let canShare = typeof SharedWorker === "function";

/** Follow the events of some types. `session` tells sessions apart: the stream has what its session may see.
 *
 * `opened()`, `lost(isOver)` and `received(type, data)` are called; nothing comes after `lost(true)`. Returns a function that ends it.
 */
export function follow(session, types, calls) {
  return canShare ? followShared(session, types, calls) : followAlone(types, calls);
}

function followAlone(types, { opened, lost, received }) {
  const source = new EventSource(STREAM);
  source.onopen = () => opened();
  source.onerror = () => lost(source.readyState === EventSource.CLOSED);
  for (const type of types) source.addEventListener(type, ({ data }) => received(type, data));
  return () => source.close();
}

function followShared(session, types, calls) {
  let worker;
  try {
    worker = new SharedWorker(WORKER, { name: session });
  } catch {
    canShare = false; // the browser blocks workers, as it blocks cookies
    return followAlone(types, calls);
  }
  const { port } = worker;
  let isOpen = false;
  let hasAnswered = false;
  let isAnswered = true; // the last beat
  const leave = () => {
    clearInterval(beats);
    worker.onerror = port.onmessage = null;
    port.postMessage({ leave: true });
    port.close();
  };
  let end = leave;
  const goAlone = () => {
    leave();
    end = followAlone(types, calls);
  };
  const beat = () => {
    if (isAnswered) {
      isAnswered = false;
      port.postMessage({ follow: types });
    } else if (hasAnswered) {
      leave();
      calls.lost(true);
    } else goAlone();
  };
  worker.onerror = () => {
    canShare = false; // the browser could not load it
    goAlone();
  };
  port.onmessage = ({ data: { type, data, state, isOver } }) => {
    isAnswered = hasAnswered = true;
    if (type) calls.received(type, data);
    else if (state === "lost") {
      isOpen = false;
      calls.lost(isOver);
    } else if (state === "open" && !isOpen) {
      isOpen = true;
      calls.opened();
    }
  };
  const beats = setInterval(beat, BEAT_MS);
  beat();
  return () => end();
}
