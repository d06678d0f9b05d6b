// Try a change on the recorded past, or on the forecast. Nothing is registered.

import { html, useEffect, useState } from "../lib/html.js";
import { get, post, v1 } from "../lib/api.js";
import { definitionOf, textOf } from "../lib/definitions.js";
import { malformed } from "../lib/input.js";
import { setQuery, to } from "../lib/router.js";
import { duration, stamp } from "../lib/time.js";
import { Card, Choice, counted, ExecutionLink, Refusal, SearchField, State, Table } from "../components/basics.js";
import { useTitle } from "../components/layout.js";

const DAY_MS = 86_400_000;
const WINDOWS = [["1", "the last day"], ["7", "the last 7 days"], ["30", "the last 30 days"], ["-1", "the next day"], ["-7", "the next 7 days"]];

export function WhatIf({ query }) {
  useTitle("What if");
  const name = query.job || "";
  const days = query.days || "7";
  const [text, setText] = useState("");
  const [capacity, setCapacity] = useState("");
  const [answer, setAnswer] = useState(null);
  const [error, setError] = useState(null);
  const [isBusy, setBusy] = useState(false);

  useEffect(() => {
    let isGone = false;
    setAnswer(null);
    setError(null);
    if (name) {
      setText(""); // without a job, the page keeps what was typed: an effect may run late
      get(v1(["jobs", name]))
        .then((job) => textOf(job.definition))
        .then((written) => !isGone && setText(written), (refused) => !isGone && setError(refused));
    }
    return () => (isGone = true);
  }, [name]);

  const ask = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      const jobs = text.trim() ? [await definitionOf(text)] : [];
      const span = Number(days) * DAY_MS;
      const window = span > 0 ? { since: new Date(Date.now() - span).toISOString() } : { until: new Date(Date.now() - span).toISOString() };
      setAnswer(await post(v1("what-if"), { jobs, capacity: capacityOf(capacity), ...window }));
    } catch (refused) {
      setError(refused);
    } finally {
      setBusy(false);
    }
  };
  return html`<h1>What if</h1>
    <p class="hint">Change a definition, or the slots of workers, and see what would have come of it. Nothing is registered. Grants of agents and <code>max_running</code> of namespaces are not regarded.</p>
    <form onSubmit=${ask}>
      <div class="filters">
        <${SearchField} label="Job" value=${name} placeholder="name of a job" onChange=${(value) => setQuery({ job: value.trim() })} />
        <${Choice} label="Window" value=${days} options=${WINDOWS} onChange=${(value) => setQuery({ days: value })} />
        <label class="field"><span>Slots of workers by queue</span> <input value=${capacity} placeholder="default=4" autocomplete="off" onInput=${(event) => setCapacity(event.target.value)} /></label>
      </div>
      <label>Definition to try, as YAML <textarea class="editor" rows=${Math.min(Math.max(text.split("\n").length + 1, 6), 30)} spellcheck=${false} value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>
      <${Refusal} error=${error} />
      <div class="buttons"><button type="submit" class="primary" disabled=${isBusy || (!text.trim() && !capacity.trim())}>${isBusy ? "Calculating …" : "Ask"}</button></div>
    </form>
    ${answer ? html`<${Answer} answer=${answer} />` : null}`;
}

/** Read `default=4, mail=2`. */
function capacityOf(text) {
  const entries = text.split(/[\s,]+/).filter(Boolean).map((part) => {
    const found = /^([^=]+)=(\d+)$/.exec(part);
    if (!found) throw malformed(`Write slots as QUEUE=NUMBER, not ${part}`);
    return [found[1], Number(found[2])];
  });
  return Object.fromEntries(entries);
}

function Answer({ answer }) {
  return html`<h2>${answer.is_forecast ? "Forecast" : "Replay"}: ${stamp(answer.since)} – ${stamp(answer.until)}</h2>
    <div class="cards">
      <${Card} title="All jobs together" wide><${Figures} before=${answer.before} after=${answer.after} isForecast=${answer.is_forecast} /><//>
      ${answer.jobs.map((one) => html`<${Card} key=${one.job} title=${one.job} wide aside=${html`<a href=${to("jobs", one.job)}>Job</a>`}>
        ${one.notes.map((note) => html`<p key=${note} class="warning">${note}</p>`)}
        ${answer.jobs.length > 1 ? html`<${Figures} before=${one.before} after=${one.after} isForecast=${answer.is_forecast} />` : null}
        <p class="hint">${counted(one.recorded_runs, "recorded run")}; a run that was not recorded takes ${duration(one.usual_duration)}.</p>
        <${Instants} title="Instants that come" found=${one.came} />
        <${Instants} title="Instants that go" found=${one.went} />
        <${Differences} found=${one.differences} />
      <//>`)}
    </div>`;
}

function Figures({ before, after, isForecast }) {
  const rows = [];
  const add = (label, pick, show = (value) => (value ?? 0).toLocaleString("en")) => rows.push([label, show(pick(before)), show(pick(after))]);
  const byKey = (label, pick) => {
    for (const key of [...new Set([...Object.keys(pick(before)), ...Object.keys(pick(after))])].sort()) add(`${label}: ${key}`, (side) => pick(side)[key] ?? 0);
  };
  add("instants that fired", (side) => side.fired);
  byKey("instants that passed", (side) => side.passed);
  add("executions", (side) => side.executions);
  byKey("ended", (side) => side.outcomes);
  byKey("skipped", (side) => side.skipped);
  add("cancelled by the next", (side) => side.superseded);
  add("overlaps", (side) => side.overlaps);
  for (const [label, key] of [["waits for the lock", "lock_waits"], ["waits for a worker", "worker_waits"]]) {
    add(label, (side) => side[key].count);
    add(`${label}: median, 95th percentile, longest`, (side) => side[key], (wait) => (wait.count ? [wait.p50, wait.p95, wait.max].map(duration).join(", ") : "–"));
  }
  return html`<${Table} label="figures before and after" keyOf=${([label]) => label} rows=${rows}
    columns=${[
      ["", ([label]) => label, "label"],
      [isForecast ? "As registered" : "As recorded", ([, value]) => value, "number"],
      ["With the change", ([, value, other]) => (value === other ? other : html`<strong>${other}</strong>`), "number"],
    ]} />`;
}

function Instants({ title, found }) {
  if (found.count === 0) return null;
  return html`<h3>${title}: ${found.count.toLocaleString("en")}</h3><p>${found.first.slice(0, 20).map((time) => stamp(time)).join(", ")}${found.count > 20 ? " …" : ""}</p>`;
}

function Differences({ found }) {
  if (found.count === 0) return null;
  const side = (course) => html`<${State} of=${course.status} /> ${course.reason || ""}${course.started_at ? ` from ${stamp(course.started_at).slice(11)}` : ""}${course.is_estimated ? html` <span class="hint">estimated</span>` : null}`;
  return html`<h3>Executions with another course: ${found.count.toLocaleString("en")}</h3>
    <${Table} label="executions with another course" keyOf=${(one) => one.execution_id} rows=${found.first}
      columns=${[
        ["Scheduled", (one) => stamp(one.scheduled_time)],
        ["Execution", (one) => html`<${ExecutionLink} id=${one.execution_id} />`],
        ["Before", (one) => side(one.before)],
        ["With the change", (one) => side(one.after)],
      ]} />`;
}
