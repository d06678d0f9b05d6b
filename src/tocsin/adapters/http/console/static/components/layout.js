// The frame around each page: navigation, the state of the event stream, and the session.

import { html, useEffect, useState } from "../lib/html.js";
import { get, v1 } from "../lib/api.js";
import { listen, useLiveState } from "../lib/live.js";
import { to } from "../lib/router.js";
import { signOut, useMay, useViewer } from "../lib/session.js";
import { LOCAL_ZONE, stamp } from "../lib/time.js";
import { LateRefusal } from "./basics.js";

/** The pages of the navigation: key, title, and the permission without which the API refuses what they show. */
const PAGES = [
  ["now", "Now", "history"],
  ["jobs", "Jobs", "read"],
  ["executions", "Executions", "history"],
  ["dead-letters", "Dead letters", "history"],
  ["queues", "Queues", "read"],
  ["agents", "Agents", "read"],
  ["silences", "Silences", "read"],
  ["schedule", "Schedule", "read"],
  ["events", "Events", "history"],
  ["changes", "Changes", "history"],
  ["what-if", "What if", "history"],
];

const LOOK_MS = 1000; // between looks at a server that has just begun

export function Layout({ session, page, children }) {
  const viewer = useViewer();
  const may = useMay();
  return html`
    <a class="skip" href="#main" data-document>Skip to the page</a>
    <header class="top">
      <a class="brand" href=${to()}><img src="/console/assets/icon.svg" alt="" width="24" height="24" /> Tocsin</a>
      <nav aria-label="Pages">
        ${PAGES.filter(([, , permission]) => may(permission)).map(
          ([key, title]) => html`<a key=${key} href=${key === "now" ? to() : to(key)} aria-current=${key === page ? "page" : null}>${title}</a>`,
        )}
      </nav>
      <div class="session">
        ${may("history") ? html`<${Live} />` : null}
        <span title=${`${viewer.kind}:${viewer.identity} – ${viewer.roles.join(", ")}`}>${viewer.identity}</span>
        ${session.signed_in ? html`<button onClick=${async () => { await signOut(); location.reload(); }}>Sign out</button>` : null}
      </div>
    </header>
    <main id="main" tabindex="-1"><${Beginning} /><${LateRefusal} />${children}</main>
    <footer><${Clock} /></footer>
  `;
}

function Live() {
  const state = useLiveState();
  useEffect(() => listen(() => {}), []); // the stream stays open from page to page
  const text = { live: "live", connecting: "connecting", reconnecting: "not connected: shows the last state" }[state];
  return html`<span class=${`live live-${state}`} role="status">${text}</span>`;
}

/** Why answers are slow, while the server reads the ledgers of all jobs: with 100,000 jobs that takes seconds. */
function Beginning() {
  const state = useLiveState();
  const [isReading, setReading] = useState(false);
  useEffect(() => {
    let isGone = false;
    let timer = null;
    const show = (health) => {
      if (isGone) return;
      const isBeginning = health?.jobs_read === false;
      setReading(isBeginning);
      if (isBeginning) timer = setTimeout(look, LOOK_MS);
    };
    const look = () => get(v1("health")).then(show, () => show(null)); // the pages say that it cannot be reached
    look();
    return () => {
      isGone = true;
      clearTimeout(timer);
    };
  }, [state]); // a server that begins again ends the stream
  return isReading ? html`<p class="hint" role="status">The server has just begun, and still reads the ledgers of all jobs. Answers are slow until then.</p>` : null;
}

function Clock() {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return html`<span>${stamp(now)} ${LOCAL_ZONE}</span> ${LOCAL_ZONE === "UTC" ? null : html`<span>${stamp(now, "UTC").slice(11)} UTC</span>`}`;
}

/** Set the title of the document. */
export function useTitle(title) {
  useEffect(() => {
    document.title = title ? `${title} – Tocsin` : "Tocsin";
  }, [title]);
}
