// The audit trail: who changed what, when, and why.

import { html } from "../lib/html.js";
import { v1 } from "../lib/api.js";
import { DEFINITION_CHANGES, useResource } from "../lib/live.js";
import { setQuery } from "../lib/router.js";
import { Choice, identityOf, JobLink, Loaded, Pager, SearchField, Table, Time } from "../components/basics.js";
import { useTitle } from "../components/layout.js";

const PAGE = 100;
/** Types of changes whose name is that of a job. */
const OF_JOBS = new Set(["created", "updated", "paused", "resumed", "deleted"]);
const OTHERS = [
  "agent-switched", "agent-granted", "agent-drained", "queue-paused", "queue-resumed", "queue-purged", "policy-defined",
  "shards-defined", "namespaces-defined", "silences-defined", "voided",
];
const TYPES = [["", "all"], ...[...OF_JOBS, ...OTHERS].map((type) => [type, type])];
const REFRESH_MS = 5_000; // the event stream has no events of queues, agents and the installation

export function Changes({ query }) {
  useTitle("Changes");
  const { job, by, type, after } = query;
  const page = useResource(v1("changes", { job, by, type, after, limit: PAGE }), after ? {} : { concerns: (kind) => DEFINITION_CHANGES.has(kind), every: REFRESH_MS });
  const filter = (changes) => setQuery({ ...changes, after: null });
  return html`<h1>Changes</h1>
    <search class="filters">
      <${SearchField} label="Job" value=${job || ""} onChange=${(text) => filter({ job: text })} />
      <${SearchField} label="By" value=${by || ""} placeholder="user:ada" onChange=${(text) => filter({ by: text })} />
      <${Choice} label="Type" value=${type || ""} options=${TYPES} onChange=${(value) => filter({ type: value })} />
    </search>
    <${Loaded} resource=${page}>${({ changes, next }) => html`
      <${Table} label="changes" empty="No change matches." rows=${changes} keyOf=${(one) => one.sequence}
        columns=${[
          ["Time", (one) => html`<${Time} at=${one.time} far />`],
          ["Type", (one) => one.type],
          ["Of", (one) => (one.name === null ? "" : OF_JOBS.has(one.type) ? html`<${JobLink} name=${one.name} />` : one.name)],
          ["By", (one) => identityOf(one.by)],
          ["Changed", (one) => one.fields.join(", "), "text"],
          ["Reason", (one) => one.reason || "", "text"],
        ]} />
      <${Pager} name="after" current=${after} next=${next} label="Older" />`}
    <//>`;
}
