// One job: its ledger of time, its revisions, how long it takes, and its definition.

import { html, useEffect, useState } from "../lib/html.js";
import { request, v1 } from "../lib/api.js";
import { textOf } from "../lib/definitions.js";
import { jsonText } from "../lib/json.js";
import { DEFINITION_CHANGES, isOfJob, useResource } from "../lib/live.js";
import { setQuery, to } from "../lib/router.js";
import { useMay } from "../lib/session.js";
import { duration, LOCAL_ZONE, stamp } from "../lib/time.js";
import { ActionButton, Card, JobLink, Loaded, Refusal, State, Table, Time } from "../components/basics.js";
import { Chart } from "../components/chart.js";
import { HeatMap } from "../components/heat-map.js";
import { JobActions } from "../components/job-actions.js";
import { Timeline } from "../components/timeline.js";
import { useTitle } from "../components/layout.js";
import { ExecutionTable } from "./executions.js";

const RUNS = 20;
const DAY_MS = 86_400_000;
const HEAT_DAYS = 91;
const ENDS = new Set(["completed", "failed", "cancelled", "skipped", "cron.missed", "cron.skipped"]);

/** Return a test whether an event is of a job and of some types. */
function isOf(name, types) {
  const isOfThis = isOfJob(name);
  return (type, stored) => types.has(type) && isOfThis(type, stored);
}

export function Job({ name, query }) {
  useTitle(name);
  const may = useMay();
  const job = useResource(v1(["jobs", name]), { concerns: isOfJob(name), every: 30_000 });
  return html`<${Loaded} resource=${job}>${(one) => html`
    <div class="heading">
      <h1>${one.name} <${State} of=${one.state} /></h1>
      <${JobActions} job=${one} reload=${job.reload} />
    </div>
    ${one.definition.description ? html`<p>${one.definition.description}</p>` : null}
    <${Facts} job=${one} />
    <div class="cards">
      ${may("history") ? html`<${Timeline} job=${one} at=${query.at} />` : null}
      ${may("history") ? html`<${Runs} job=${one} /><${Durations} job=${one} /><${Calendar} job=${one} />` : null}
      ${may("history") ? html`<${Revisions} job=${one} reload=${job.reload} selected=${query.revision} />` : null}
      <${Card} title="Definition" wide aside=${(one.permitted || []).includes("register") ? html`<a class="button" href=${to("edit-job", one.name)}>Edit</a> <a class="button" href=${`${to("what-if")}?job=${encodeURIComponent(one.name)}`}>What if</a>` : null}>
        <${Definition} of=${one.definition} />
      <//>
    </div>`}
  <//>`;
}

function Definition({ of: definition }) {
  const [text, setText] = useState("");
  useEffect(() => {
    let isGone = false;
    textOf(definition).then((written) => !isGone && setText(written));
    return () => (isGone = true);
  }, [definition]);
  return html`<pre tabindex="0" aria-label="definition">${text}</pre>`;
}

function Facts({ job }) {
  const { definition } = job;
  const zone = job.timezone;
  return html`<dl class="facts">
    <dt>Schedule</dt><dd>${job.schedule ? html`<code>${job.schedule}</code> in ${zone}` : "none: it runs on demand"} ${job.expressions.length > 0 && job.expressions[0] !== job.schedule ? html`<span class="hint">${job.expressions.join("; ")}</span>` : null}</dd>
    ${job.warnings.map((warning) => html`<dt key=${warning}>Note</dt><dd>${warning}</dd>`)}
    ${job.next_fire_times.length > 0 ? html`<dt>Next</dt><dd><ul class="plain">${job.next_fire_times.map((at) => html`<li key=${at}><${Time} at=${at} zone=${zone} far />${zone === LOCAL_ZONE ? null : html` <span class="hint">${stamp(at, zone)} ${zone}</span>`}</li>`)}</ul></dd>` : null}
    <dt>Overlap</dt><dd>${definition.overlap_policy}</dd>
    <dt>Queue</dt><dd><a href=${`${to("queues")}#${definition.queue}`}>${definition.queue}</a></dd>
    ${definition.depends_on?.length > 0 ? html`<dt>Depends on</dt><dd>${definition.depends_on.map((one) => html`<${JobLink} key=${one.job || one} name=${one.job || one} /> `)}</dd>` : null}
    ${job.tags.length > 0 ? html`<dt>Tags</dt><dd>${job.tags.map((tag) => html`<a class="tag" key=${tag} href=${`${to("jobs")}?tag=${encodeURIComponent(tag)}`}>${tag}</a> `)}</dd>` : null}
    <dt>Owner</dt><dd>${job.owner || "none"}${job.created_by ? html` <span class="hint">registered by ${job.created_by}</span>` : null}</dd>
  </dl>`;
}

function Runs({ job }) {
  const runs = useResource(v1("executions", { job: job.name, limit: RUNS }), { concerns: isOfJob(job.name) });
  return html`<${Card} title="Last runs" wide aside=${html`<a href=${`${to("executions")}?job=${encodeURIComponent(job.name)}`}>All</a>`}>
    <${Loaded} resource=${runs}>${({ executions }) => html`<${ExecutionTable} rows=${executions} withJob=${false} zone=${job.timezone} />`}<//>
  <//>`;
}

function Durations({ job }) {
  const [since] = useState(() => new Date(Date.now() - 14 * DAY_MS).toISOString());
  const found = useResource(v1(["jobs", job.name, "durations"], { since, buckets: 56 }), { concerns: isOf(job.name, ENDS) });
  return html`<${Card} title="Durations" aside="14 days">
    <${Loaded} resource=${found}>${({ buckets, sampled }) => html`
      ${buckets.some((one) => one.count > 0)
        ? html`<${Chart} label="durations: median and 95th percentile" times=${buckets.map((one) => one.start)} unit=${duration}
            series=${[
              { label: "p50", colour: "--accent", values: buckets.map((one) => one.p50) },
              { label: "p95", colour: "--warn", values: buckets.map((one) => one.p95) },
            ]} />`
        : html`<p class="empty">No run has ended in this time.</p>`}
      ${sampled ? html`<p class="hint">From a sample of the runs.</p>` : null}`}
    <//>
  <//>`;
}

function Calendar({ job }) {
  const [since] = useState(() => new Date(Date.now() - HEAT_DAYS * DAY_MS).toISOString());
  const found = useResource(v1(["jobs", job.name, "calendar"], { since, timezone: job.timezone }), { concerns: isOf(job.name, ENDS) });
  return html`<${Card} title="Days" aside=${job.timezone}>
    <${Loaded} resource=${found}>${({ days }) => html`<${HeatMap} days=${days} count=${HEAT_DAYS} zone=${job.timezone} />`}<//>
  <//>`;
}

function Revisions({ job, reload, selected }) {
  const list = useResource(v1(["jobs", job.name, "revisions"], { limit: 50 }), { concerns: isOf(job.name, DEFINITION_CHANGES) });
  const may = (job.permitted || []).includes("register");
  return html`<${Card} title="Revisions" wide>
    <${Loaded} resource=${list}>${({ revisions, next }) => html`
      <${Table} label="revisions" rows=${revisions} keyOf=${(one) => one.sequence}
        columns=${[
          ["Revision", (one) => html`${one.kind === "defined" ? html`<button aria-pressed=${String(one.sequence) === selected} onClick=${() => setQuery({ revision: String(one.sequence) === selected ? null : one.sequence })}>${one.sequence}</button>` : one.sequence}${one.is_current ? html` <span class="tag">current</span>` : null}`],
          ["Time", (one) => html`<${Time} at=${one.at} far />`],
          ["What", (one) => one.kind],
          ["By", (one) => one.by || ""],
          ["Changed", (one) => one.changed.join(", "), "text"],
          ["Reason", (one) => one.reason || "", "text"],
          ...(may
            ? [["", (one) => (one.kind === "defined" && one.sequence !== inForce(revisions)
                ? html`<${ActionButton} label="Roll back" title=${`Roll ${job.name} back to revision ${one.sequence}`} frozen done=${reload}
                    details=${html`<p>The definition of this revision is registered again, as a new revision. What runs goes on.</p>`}
                    act=${(reason) => request("POST", v1(["jobs", job.name, "rollback"]), { body: { sequence: one.sequence, reason: reason || null }, headers: { "If-Match": `"${job.sequence}"` } })} />`
                : "")]]
            : []),
        ]} />
      ${next ? html`<p class="hint">Only the newest ${revisions.length} revisions are shown. The command line lists all of them.</p>` : null}
      ${selected ? html`<${Difference} key=${selected} job=${job} sequence=${selected} />` : null}`}
    <//>
  <//>`;
}

/** The revision whose definition is in force; a pause changes none. Undefined: it is not among these. */
function inForce(revisions) {
  return revisions.find((one) => one.kind === "defined")?.sequence;
}

/** The fields in which a revision differs from the present definition. */
function Difference({ job, sequence }) {
  const past = useResource(v1(["jobs", job.name, "definitions", sequence]));
  if (past.error) return html`<${Refusal} error=${past.error} />`;
  if (!past.value) return html`<p class="loading">Loading …</p>`;
  const before = withoutNull(past.value.fact.definition || {});
  const after = withoutNull(job.definition);
  const text = (value) => jsonText(value) ?? "–";
  const fields = [...new Set([...Object.keys(before), ...Object.keys(after)])].filter((field) => text(before[field]) !== text(after[field]));
  return html`<h3>Revision ${sequence} and the present definition</h3>
    <${Table} label="differences" empty="No field of this revision differs." rows=${fields} keyOf=${(field) => field}
      columns=${[
        ["Field", (field) => html`<code>${field}</code>`],
        [`Revision ${sequence}`, (field) => html`<del>${text(before[field])}</del>`, "text"],
        ["Now", (field) => html`<ins>${text(after[field])}</ins>`, "text"],
      ]} />`;
}

/** The fields whose content the author writes freely, so that a null in it counts. */
const FREE = new Set(["input", "args", "input_schema"]);

/** Events leave out the fields that are null. */
function withoutNull(value) {
  if (value === null || typeof value !== "object") return value ?? undefined;
  if (Array.isArray(value)) return value.map((one) => withoutNull(one) ?? null);
  const kept = ([name, one]) => [name, FREE.has(name) ? one ?? undefined : withoutNull(one)];
  return Object.fromEntries(Object.entries(value).map(kept).filter(([, one]) => one !== undefined));
}
