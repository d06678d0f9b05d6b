// The event stream of all windows of a session, as a shared worker. It is open while a window follows it.
//
// A window sends {follow: TYPES}, again with each beat, or {leave: true}. It receives {state}, "open" or "connecting", as the answer
// to each of the first, {state: "open"} and {state: "lost", isOver} at any time, and the events as {type, data}. A window that the
// browser ended without a word costs one message for each event, until all windows are gone.

const followers = new Set();
const heard = new Set();
let source = null;

self.onconnect = ({ ports: [port] }) => {
  port.onmessage = ({ data }) => (data.follow ? follow(port, data.follow) : leave(port));
};

function follow(port, types) {
  followers.add(port);
  if (source === null) open();
  port.postMessage({ state: source.readyState === EventSource.OPEN ? "open" : "connecting" });
  hear(types);
}

function leave(port) {
  followers.delete(port);
  if (followers.size === 0) close();
}

function open() {
  const opening = (source = new EventSource("/v1/events"));
  opening.onopen = () => tell({ state: "open" });
  opening.onerror = () => {
    const isOver = opening.readyState === EventSource.CLOSED;
    tell({ state: "lost", isOver });
    if (isOver) {
      followers.clear(); // each window decides whether it follows again
      close();
    }
  };
}

function close() {
  source?.close();
  source = null;
  heard.clear();
}

/** An `EventSource` hears only the types that it names; a window of a newer version may name more. */
function hear(types) {
  for (const type of types) {
    if (heard.has(type)) continue;
    heard.add(type);
    source.addEventListener(type, ({ data }) => tell({ type, data }));
  }
}

function tell(message) {
  for (const port of followers) port.postMessage(message);
}
