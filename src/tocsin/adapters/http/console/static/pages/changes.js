// The audit trail: who changed what, when, and why.

import { html } from "../lib/html.js";
import { v1 } from "../lib/api.js";
import { useResource } from "../lib/live.js";
import { navigate, setQuery } from "../lib/router.js";
import { JobLink, Loaded, SearchField, Table, Time } from "../components/basics.js";
import { useTitle } from "../components/layout.js";

const PAGE = 100;
const CHANGES = new Set(["defined", "paused", "resumed", "deleted", "disabled", "enabled", "drained"]);

export function Changes({ query }) {
  useTitle("Changes");
  const { job, by, type, after } = query;
  const page = useResource(v1("changes", { job, by, type, after, limit: PAGE }), { concerns: after ? null : (kind) => CHANGES.has(kind) });
  const filter = (changes) => setQuery({ ...changes, after: null });
  return html`<h1>Changes</h1>
    <search class="filters">
      <${SearchField} label="Job" value=${job || ""} onChange=${(text) => filter({ job: text })} />
      <${SearchField} label="By" value=${by || ""} placeholder="user:ada" onChange=${(text) => filter({ by: text })} />
      <${SearchField} label="Type" value=${type || ""} placeholder="paused" onChange=${(text) => filter({ type: text })} />
    </search>
    <${Loaded} resource=${page}>${({ changes, next }) => html`
      <${Table} label="changes" empty="No change matches." rows=${changes} keyOf=${(one) => one.sequence}
        columns=${[
          ["Time", (one) => html`<${Time} at=${one.at} far />`],
          ["Type", (one) => one.type],
          ["Of", (one) => (one.job ? html`<${JobLink} name=${one.job} />` : one.resource || "")],
          ["By", (one) => identityOf(one.by)],
          ["Changed", (one) => (one.changed || []).join(", "), "text"],
          ["Reason", (one) => one.reason || "", "text"],
        ]} />
      <div class="pager">
        ${after ? html`<button onClick=${() => setQuery({ after: null })}>First page</button>` : null}
        ${next ? html`<button onClick=${() => { const wanted = new URLSearchParams(location.search); wanted.set("after", next); navigate(`${location.pathname}?${wanted}`); }}>Older</button>` : null}
      </div>`}
    <//>`;
}

function identityOf(by) {
  if (!by) return "";
  return typeof by === "string" ? by : `${by.kind ? `${by.kind}:` : ""}${by.identity}${by.source ? ` (${by.source})` : ""}`;
}
