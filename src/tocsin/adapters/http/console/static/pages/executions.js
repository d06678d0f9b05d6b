// Executions in the history, with filters.

import { html } from "../lib/html.js";
import { v1 } from "../lib/api.js";
import { useResource } from "../lib/live.js";
import { setQuery } from "../lib/router.js";
import { milliseconds } from "../lib/time.js";
import { Choice, ExecutionLink, JobLink, Loaded, Pager, SearchField, State, Table, Time } from "../components/basics.js";
import { useTitle } from "../components/layout.js";

const PAGE = 50;
const STATUSES = ["", "pending", "running", "completed", "failed", "cancelled", "skipped"].map((one) => [one, one || "all"]);
const SORTS = [["newest", "newest"], ["oldest", "oldest"], ["last-started", "last started"], ["longest", "longest"], ["shortest", "shortest"]];
const CHANGES = new Set(["admitted", "planned", "started", "completed", "failed", "cancelled", "skipped", "queued"]);

export function Executions({ query }) {
  useTitle("Executions");
  const { job, status, trigger, tag, error, sort, cursor, since, until } = query;
  // A page in the middle of the list does not move under the reader.
  const page = useResource(v1("executions", { job, status, trigger, tag, error, sort, cursor, since, until, limit: PAGE }), {
    concerns: cursor ? null : (type) => CHANGES.has(type),
  });
  const filter = (changes) => setQuery({ ...changes, cursor: null });
  return html`<h1>Executions</h1>
    <search class="filters">
      <${SearchField} label="Job" value=${job || ""} onChange=${(text) => filter({ job: text })} />
      <${Choice} label="Status" value=${status || ""} options=${STATUSES} onChange=${(value) => filter({ status: value })} />
      <${SearchField} label="Tag" value=${tag || ""} onChange=${(text) => filter({ tag: text })} />
      <${SearchField} label="Error" value=${error || ""} placeholder="text in the last error" onChange=${(text) => filter({ error: text })} />
      <${Choice} label="Order" value=${sort || "newest"} options=${SORTS} onChange=${(value) => filter({ sort: value === "newest" ? "" : value })} />
    </search>
    <${Loaded} resource=${page}>${({ executions, next }) => html`
      <${ExecutionTable} rows=${executions} />
      <${Pager} name="cursor" current=${cursor} next=${next} />`}
    <//>`;
}

export function ExecutionTable({ rows, withJob = true, zone }) {
  return html`<${Table} label="executions" empty="No execution matches." keyOf=${(row) => row.execution_id} rows=${rows}
    columns=${[
      ["Status", (row) => html`<${State} of=${row.status} />`],
      ...(withJob ? [["Job", (row) => html`<${JobLink} name=${row.job_name} />`]] : []),
      ["Execution", (row) => html`<${ExecutionLink} id=${row.execution_id} />`],
      ["Scheduled", (row) => html`<${Time} at=${row.scheduled_time} zone=${zone} far />`],
      ["Trigger", (row) => row.trigger],
      ["Took", (row) => milliseconds(row.duration_ms), "number"],
      ["Attempt", (row) => row.attempt || "", "number"],
      ["Worker", (row) => row.worker || ""],
      ["Error or reason", (row) => row.error || row.reason || "", "text"],
    ]} />`;
}
