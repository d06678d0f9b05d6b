// All jobs: search and filters, their last outcomes, and their next instants.

import { html, useState } from "../lib/html.js";
import { v1 } from "../lib/api.js";
import { DEFINITION_CHANGES, isOfJob, useResource } from "../lib/live.js";
import { setQuery, to } from "../lib/router.js";
import { useMay } from "../lib/session.js";
import { clock, LOCAL_ZONE } from "../lib/time.js";
import { Choice, JobLink, Loaded, Pager, SearchField, State, Strip, Table, Time } from "../components/basics.js";
import { JobActions } from "../components/job-actions.js";
import { useTitle } from "../components/layout.js";

const PAGE = 50;
const OUTCOMES = 20;
const STATES = [["", "all"], ["active", "active"], ["paused", "paused"], ["disabled", "disabled"], ["on demand", "on demand"]];
const ENDS = new Set(["completed", "failed", "cancelled", "skipped"]);

export function Jobs({ query }) {
  useTitle("Jobs");
  const may = useMay();
  const { search, state, tag, owner, queue, after } = query;
  const page = useResource(v1("jobs", { search, state, tag, owner, queue, after, limit: PAGE }), {
    concerns: (type) => DEFINITION_CHANGES.has(type),
    every: 30_000,
  });
  const names = (page.value?.jobs || []).map((job) => job.name);
  const outcomes = useOutcomes(may("history") ? names : []);
  const filter = (changes) => setQuery({ ...changes, after: null });
  return html`<div class="heading"><h1>Jobs</h1>
      ${may("register") ? html`<a class="button primary" href=${to("new-job")}>New job</a>` : null}</div>
    <search class="filters">
      <${SearchField} label="Search" value=${search || ""} placeholder="name, description or tag" onChange=${(text) => filter({ search: text })} />
      <${Choice} label="State" value=${state || ""} options=${STATES} onChange=${(value) => filter({ state: value })} />
      <${SearchField} label="Tag" value=${tag || ""} onChange=${(text) => filter({ tag: text })} />
      <${SearchField} label="Owner" value=${owner || ""} placeholder="user:ada" onChange=${(text) => filter({ owner: text })} />
      <${SearchField} label="Queue" value=${queue || ""} onChange=${(text) => filter({ queue: text })} />
    </search>
    <${Loaded} resource=${page}>${({ jobs, next }) => html`
      <${Table} label="jobs" empty="No job matches." keyOf=${(job) => job.name} rows=${jobs}
        columns=${[
          ["Job", (job) => html`<${JobLink} name=${job.name} />`],
          ["State", (job) => html`<${State} of=${job.state} />`],
          ...(may("trigger") || may("register") ? [["", (job) => html`<${RowActions} name=${job.name} reload=${page.reload} />`]] : []),
          ["Schedule", (job) => html`${job.schedule || "–"} ${job.schedule && job.timezone !== "UTC" ? html`<span class="hint">${job.timezone}</span>` : null}`, "text"],
          ...(may("history") ? [["Last outcomes", (job) => html`<${Outcomes} of=${job.name} known=${outcomes} />`]] : []),
          ["Next", (job) => html`<${Time} at=${job.next_fire_time} zone=${job.timezone} far />${job.next_fire_time && job.timezone !== LOCAL_ZONE ? html`<br /><span class="hint">${clock(job.next_fire_time, job.timezone)} ${job.timezone}</span>` : null}`],
          ["Tags", (job) => job.tags.map((one) => html`<a class="tag" key=${one} href=${to("jobs") + `?tag=${encodeURIComponent(one)}`}>${one}</a> `)],
          ["Owner", (job) => job.owner || "", "text"],
        ]} />
      <${Pager} name="after" current=${after} next=${next} />`}
    <//>`;
}

/** What a person may do with the job of a row. The list does not say it, so a row loads it when it is opened. */
function RowActions({ name, reload }) {
  const [isOpen, setOpen] = useState(false);
  return html`<div class="actions">
    <button aria-label=${`Actions of ${name}`} aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>Actions</button>
    ${isOpen ? html`<${OpenActions} name=${name} reload=${reload} />` : null}
  </div>`;
}

function OpenActions({ name, reload }) {
  const job = useResource(v1(["jobs", name]), { concerns: isOfJob(name) });
  const changed = () => {
    job.reload();
    reload();
  };
  return html`<${Loaded} resource=${job}>${(one) => {
    const may = (permission) => one.permitted.includes(permission);
    if (!may("trigger") && !may("register")) return html`<span class="hint">You may not act on this job.</span>`;
    return html`<${JobActions} job=${one} reload=${changed} deleted=${reload} />${may("register") ? html`<a class="button" href=${to("edit-job", name)}>Edit</a>` : null}`;
  }}<//>`;
}

function Outcomes({ of: name, known: { jobs, error } }) {
  if (jobs === null) return error ? html`<span class="none" title=${error.message}>not known now</span>` : "…";
  return html`<${Strip} outcomes=${Object.hasOwn(jobs, name) ? jobs[name] : []} />`;
}

/** Return the last outcomes of some jobs by name, `{jobs, error}`; null: they are not known, or not yet. */
function useOutcomes(names) {
  const url = names.length > 0 ? v1("outcomes", { job: names, limit: OUTCOMES }) : null;
  const resource = useResource(url, { concerns: (type) => ENDS.has(type) });
  return { jobs: url === null ? {} : resource.value?.jobs ?? null, error: resource.error };
}
