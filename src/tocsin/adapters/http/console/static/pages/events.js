// The event stream itself, live and filtered.

import { html, useEffect, useRef, useState } from "../lib/html.js";
import { listen } from "../lib/live.js";
import { setQuery, to } from "../lib/router.js";
import { SearchField, StoredEvent, Table, Time } from "../components/basics.js";
import { useTitle } from "../components/layout.js";

const MOST = 200;
const FRAME_MS = 250;

export function Events({ query }) {
  useTitle("Events");
  const { job = "", type = "" } = query;
  const [rows, setRows] = useState([]);
  const [isHeld, setHeld] = useState(false);
  const [passed, setPassed] = useState(0);
  const filter = useRef({});
  filter.current = { job, type, isHeld };

  useEffect(() => {
    // Events are gathered and shown four times a second, however many come.
    let gathered = [];
    let number = 0;
    const stop = listen((kind, stored) => {
      const wanted = filter.current;
      if (wanted.isHeld) return;
      const name = stored.fact?.job || stored.fact?.data?.cron_name || "";
      if ((wanted.type && !kind.includes(wanted.type)) || (wanted.job && !name.includes(wanted.job))) return;
      number += 1;
      gathered.push({ kind, stored, name });
      if (gathered.length > MOST) gathered.shift();
    });
    const timer = setInterval(() => {
      if (gathered.length === 0) return;
      const fresh = gathered.reverse();
      gathered = [];
      setPassed(number);
      setRows((last) => [...fresh, ...last].slice(0, MOST));
    }, FRAME_MS);
    return () => {
      stop();
      clearInterval(timer);
    };
  }, []);

  return html`<h1>Events</h1>
    <search class="filters">
      <${SearchField} label="Job" value=${job} onChange=${(text) => setQuery({ job: text })} />
      <${SearchField} label="Type" value=${type} placeholder="completed" onChange=${(text) => setQuery({ type: text })} />
      <button aria-pressed=${isHeld} onClick=${() => setHeld(!isHeld)}>${isHeld ? "Go on" : "Hold"}</button>
      <button onClick=${() => setRows([])}>Clear</button>
    </search>
    <p class="hint" role="status">${passed.toLocaleString("en")} events while the page was shown; the newest ${MOST} are kept.</p>
    <${Table} label="events" empty="Waiting for events." rows=${rows} keyOf=${({ stored }) => `${stored.subject} ${stored.sequence}`}
      columns=${[
        ["Time", ({ stored }) => html`<${Time} at=${stored.time} />`],
        ["Type", ({ kind }) => kind],
        ["Job", ({ name }) => (name ? html`<a href=${to("jobs", name)}>${name}</a>` : "")],
        ["Execution", ({ stored }) => (stored.fact.execution_id ? html`<a class="id" href=${to("executions", stored.fact.execution_id)}>${stored.fact.execution_id}</a>` : "")],
        ["Event", ({ stored }) => html`<${StoredEvent} stored=${stored} />`, "text"],
      ]} />`;
}
