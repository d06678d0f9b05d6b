// What happens now: who waits for what, what fails, what comes next, and what needs a person.

import { html } from "../lib/html.js";
import { v1 } from "../lib/api.js";
import { useResource } from "../lib/live.js";
import { to } from "../lib/router.js";
import { useMay } from "../lib/session.js";
import { relative, stamp } from "../lib/time.js";
import { Card, counted, Empty, ExecutionLink, JobLink, Loaded, State, Table, Time } from "../components/basics.js";
import { Chart } from "../components/chart.js";
import { useTitle } from "../components/layout.js";

const REFRESH_MS = 15_000;
const WAITING = {
  lock: "for the lock of their job",
  worker: "for a worker",
  dependency: "for runs of other jobs",
  acknowledgements: "for acknowledgements of agents",
  delay: "for the end of a delay",
};

export function Now() {
  useTitle("Now");
  const may = useMay();
  const overview = useResource(v1("overview"), { concerns: () => true, every: REFRESH_MS });
  return html`<h1>Now</h1>
    <${Loaded} resource=${overview}>${(now) => html`
      <div class="figures">
        <${Figure} value=${now.running.count} isLeast=${!now.are_open_complete} label="running" href=${to("executions") + "?status=running"} />
        <${Figure} value=${now.waiting.count} isLeast=${!now.are_open_complete} label="waiting" href=${to("executions") + "?status=pending"} />
        <${Figure} value=${now.failing.count} label="failing jobs" tone="failed" />
        <${Figure} value=${now.late.count} isLeast=${!now.are_jobs_complete} label="late" tone="late" />
      </div>
      ${now.are_open_complete ? null : html`<p class="hint">More executions are open than are counted here.</p>`}
      ${now.are_jobs_complete ? null : html`<p class="hint">Late and coming instants of some jobs are missing: their calculation takes longer.</p>`}
      <div class="cards">
        ${may("administer") ? html`<${Doctor} />` : null}
        <${Running} running=${now.running} />
        <${Waiting} waiting=${now.waiting} />
        <${Failing} jobs=${now.failing.jobs} />
        <${Late} late=${now.late} />
        <${Upcoming} upcoming=${now.upcoming} />
        <${Rates} rates=${now.rates} />
        <${Leaders} leaders=${now.leader} />
      </div>`}
    <//>`;
}

function Figure({ value, isLeast = false, label, href, tone }) {
  const inner = html`<strong>${Number(value).toLocaleString("en")}${isLeast ? "+" : ""}</strong> <span>${label}</span>`;
  const kind = value > 0 && tone ? `figure figure-${tone}` : "figure";
  return href ? html`<a class=${kind} href=${href}>${inner}</a>` : html`<div class=${kind}>${inner}</div>`;
}

function Doctor() {
  const doctor = useResource(v1("doctor"), { every: 60_000 });
  return html`<${Card} title="Health" wide>
    <${Loaded} resource=${doctor}>${({ findings }) => {
      const found = findings.filter((one) => one.level !== "ok");
      if (found.length === 0) return html`<p>${counted(findings.length, "check")}, no findings.</p>`;
      return html`<ul class="findings">${found.map(
        (one) => html`<li key=${one.code} class=${`finding finding-${one.level}`}>
          <strong>${one.what}</strong> <code>${one.code}</code>
          ${one.means ? html`<p>${one.means}</p>` : null}
          ${one.do ? html`<p class="remedy">${one.do}</p>` : null}
        </li>`,
      )}</ul>`;
    }}<//>
  <//>`;
}

function Running({ running }) {
  return html`<${Card} title="Running">
    <${Table} label="running executions" empty="Nothing runs." keyOf=${(one) => one.execution_id} rows=${running.longest}
      columns=${[
        ["Job", (one) => html`<${JobLink} name=${one.job} />`],
        ["Execution", (one) => html`<${ExecutionLink} id=${one.execution_id} />`],
        ["Since", (one) => html`<${Time} at=${one.started_at} far />`],
      ]} />
  <//>`;
}

function Waiting({ waiting }) {
  const kinds = Object.keys(WAITING).map((kind) => [kind, waiting[kind]]).filter(([, one]) => one.count > 0);
  return html`<${Card} title="Waiting">
    ${kinds.length === 0 ? html`<${Empty}>Nothing waits.<//>` : null}
    ${kinds.map(
      ([kind, one]) => html`<h3 key=${kind}>${Number(one.count).toLocaleString("en")} ${WAITING[kind]}</h3>
        <ul>${one.examples.map((example) => html`<li key=${example.execution_id}><${JobLink} name=${example.job} /> <${ExecutionLink} id=${example.execution_id} />${example.held_up_by.map((held) => html`<br /><span class="hint">${held.message}</span>`)}</li>`)}</ul>`,
    )}
    ${waiting.examined < waiting.count ? html`<p class="hint">What the first ${waiting.examined.toLocaleString("en")} wait for.</p>` : null}
  <//>`;
}

function Failing({ jobs }) {
  return html`<${Card} title="Failing jobs">
    <${Table} label="failing jobs" empty="No job's last run failed." keyOf=${(one) => one.job} rows=${jobs}
      columns=${[
        ["Job", (one) => html`<${JobLink} name=${one.job} />`],
        ["Last run", (one) => html`<${ExecutionLink} id=${one.execution_id}><${State} of="failed" /><//>`],
        ["Since", (one) => html`<${Time} at=${one.since} far />`],
        ["Failures", (one) => one.failures, "number"],
        ["Error", (one) => one.error, "text"],
      ]} />
  <//>`;
}

function Late({ late }) {
  if (late.count === 0) return null;
  return html`<${Card} title="Late">
    <${Table} label="instants that are due and not decided" keyOf=${(one) => `${one.at} ${one.job}`} rows=${late.instants}
      columns=${[
        ["Due", (one) => html`<${Time} at=${one.at} far />`],
        ["Job", (one) => html`<${JobLink} name=${one.job} />`],
      ]} />
  <//>`;
}

function Upcoming({ upcoming }) {
  return html`<${Card} title="Next hour" aside=${html`${counted(upcoming.count, "job")} <a href=${to("schedule")}>Schedule</a>`}>
    <${Table} label="instants of the next hour" empty="No job has an instant in the next hour." keyOf=${(one) => `${one.at} ${one.job}`} rows=${upcoming.instants}
      columns=${[
        ["At", (one) => html`<time datetime=${one.at} title=${stamp(one.at, "UTC") + " UTC"}>${stamp(one.at).slice(11)}</time> <span class="far">${relative(one.at)}</span>`],
        ["Job", (one) => html`<${JobLink} name=${one.job} />`],
      ]} />
  <//>`;
}

function Rates({ rates }) {
  const total = (name) => rates.reduce((all, one) => all + one[name], 0);
  const series = [
    ["completed", "--ok"],
    ["failed", "--bad"],
    ["skipped", "--dim"],
  ];
  return html`<${Card} title="Last hour">
    <p>${series.map(([name]) => `${Number(total(name)).toLocaleString("en")} ${name}`).join(", ")}</p>
    <${Chart} label="executions that ended, by minute" times=${rates.map((one) => one.start)}
      series=${series.map(([name, colour]) => ({ label: name, colour, values: rates.map((one) => one[name]) }))} />
  <//>`;
}

function Leaders({ leaders }) {
  if (leaders === null) return null; // the leases cannot be read now
  return html`<${Card} title="Leaders">
    <${Table} label="leaders of stages" empty="No stage leads." keyOf=${(one) => one.stage} rows=${leaders}
      columns=${[
        ["Stage", (one) => one.stage],
        ["Process", (one) => html`${one.holder} ${one.is_overdue ? html`<${State} of="late" label="overdue" />` : null}`, "text"],
        ["Renewed", (one) => html`<${Time} at=${one.renewed_at} far />`],
      ]} />
  <//>`;
}
