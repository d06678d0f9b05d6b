// The event stream of this window: the one of a shared worker, or its own where the browser has no shared workers.
//
// A browser has six connections to a server over HTTP/1.1 for all of its windows together. So the windows of a session share a
// stream, or six of them would leave no connection for requests.

const STREAM = "/v1/events";
const WORKER = "/console/assets/lib/stream-worker.js";
let canShare = typeof SharedWorker === "function";
let worker = null;
let sessionOfWorker = null;

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
  if (worker === null || sessionOfWorker !== session) {
    try {
      worker = new SharedWorker(WORKER, { name: session });
    } catch {
      canShare = false; // the browser blocks workers, as it blocks cookies
      return followAlone(types, calls);
    }
    sessionOfWorker = session;
  }
  const { port } = worker;
  let isEnded = false;
  let end = () => port.postMessage({ leave: true });
  worker.onerror = () => {
    canShare = false; // the browser could not load it
    if (!isEnded) end = followAlone(types, calls);
  };
  port.onmessage = ({ data: { type, data, state, isOver } }) => {
    if (type) calls.received(type, data);
    else if (state === "open") calls.opened();
    else calls.lost(isOver);
  };
  port.postMessage({ follow: types });
  return () => {
    isEnded = true;
    port.onmessage = null;
    end();
  };
}
