// A job's definition as YAML. What the change would do is shown before it is applied.

import { html, useEffect, useRef, useState } from "../lib/html.js";
import { reasonHeader, request, v1 } from "../lib/api.js";
import { definitionOf, textOf } from "../lib/definitions.js";
import { jsonText } from "../lib/json.js";
import { navigate, to } from "../lib/router.js";
import { stamp } from "../lib/time.js";
import { Card, counted, Refusal, Table } from "../components/basics.js";
import { useTitle } from "../components/layout.js";

const NEW = `name: my-job
schedule: every weekday at 2am
timezone: UTC
function: my-function
`;
const PLAN_DAYS = 14;

export function NewJob() {
  useTitle("New job");
  return html`<h1>New job</h1><${Editor} text=${NEW} version=${null} />`;
}

export function EditJob({ name }) {
  useTitle(`Edit ${name}`);
  // The editor keeps the version that it was opened with, so that a later change of somebody else is not overwritten.
  const [opened, setOpened] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    request("GET", v1(["jobs", name]))
      .then(async ({ value, etag }) => setOpened({ text: await textOf(value.definition), etag }))
      .catch(setError);
  }, [name]);
  return html`<h1>Edit ${name}</h1>
    <${Refusal} error=${error} />
    ${opened ? html`<${Editor} name=${name} text=${opened.text} version=${opened.etag} />` : error ? null : html`<p class="loading">Loading …</p>`}`;
}

function Editor({ name, text, version }) {
  const [current, setCurrent] = useState(text);
  const [plan, setPlan] = useState(null); // {of: the text it is for, definition, changes}
  const [error, setError] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const reason = useRef("");

  const guarded = (act) => async (event) => {
    event?.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await act();
    } catch (refused) {
      setError(refused);
    } finally {
      setBusy(false);
    }
  };
  const look = guarded(async () => {
    const definition = await definitionOf(current);
    const { value } = await request("POST", "/v1/jobs:apply", { body: { jobs: [definition], dry_run: true, days: PLAN_DAYS } });
    for (const change of value.changes) change.differences = change.differences.flatMap((one) => withoutOwner(one, definition));
    setPlan({ of: current, definition, applied: value });
  });
  const apply = guarded(async () => {
    const job = plan.definition.name ?? name;
    const isNew = job !== name; // also if the editor of a job got another name
    const headers = { ...reasonHeader(reason.current.trim()), ...(isNew ? { "If-None-Match": "*" } : { "If-Match": version }) };
    await request("PUT", v1(["jobs", job]), { body: plan.definition, headers }).catch((refused) => {
      throw Object.assign(refused, { existing: isNew ? job : null });
    });
    navigate(to("jobs", job));
  });
  const isPlanned = plan !== null && plan.of === current;
  return html`<form onSubmit=${isPlanned ? apply : look}>
    <label>Definition, as YAML
      <textarea class="editor" rows=${Math.min(Math.max(current.split("\n").length + 1, 12), 40)} spellcheck=${false} value=${current} onInput=${(event) => setCurrent(event.target.value)}></textarea>
    </label>
    <${Conflict} error=${error} name=${name} />
    ${isPlanned ? html`<${Plan} applied=${plan.applied} />
      <label>Reason <input maxlength="1000" autocomplete="off" placeholder="recorded in the log" onInput=${(event) => (reason.current = event.target.value)} /></label>` : null}
    <div class="buttons">
      <a class="button" href=${name ? to("jobs", name) : to("jobs")}>Back</a>
      <button type="button" class=${isPlanned ? "" : "primary"} disabled=${isBusy} onClick=${look}>Show the plan</button>
      ${isPlanned ? html`<button type="submit" class="primary" disabled=${isBusy}>Apply</button>` : null}
    </div>
  </form>`;
}

/** The plan gives a definition without an owner its caller as the owner. Here it is stored as it is. */
function withoutOwner(difference, definition) {
  if (difference.field !== "owner" || (definition.owner ?? null) !== null) return [difference];
  return difference.before === null ? [] : [{ ...difference, after: null }];
}

function Conflict({ error, name }) {
  if (error?.status === 412 && error.existing) {
    return html`<div class="refusal" role="alert"><strong>A job with the name ${error.existing} exists already.</strong> <code>${error.code}</code>
      <p>Nothing was applied. <a href=${to("jobs", error.existing)}>Look at it</a>, or choose another name.</p></div>`;
  }
  if (error?.status === 412) {
    return html`<div class="refusal" role="alert"><strong>Another person has changed this job since you opened it.</strong> <code>${error.code}</code>
      <p>Nothing was applied. <a href=${to("jobs", name)}>Look at the job as it is now</a>, then edit it again.</p></div>`;
  }
  return html`<${Refusal} error=${error} />`;
}

function Plan({ applied }) {
  return html`${applied.changes.map((change) => html`<${Card} key=${change.job} title=${`Plan: ${change.action} ${change.job}`} wide>
    ${change.warnings.map((warning) => html`<p key=${warning} class="warning">${warning}</p>`)}
    ${applied.unserved.map((one) => html`<p key=${`${one.queue} ${one.function}`} class="warning">${one.message}</p>`)}
    ${applied.unknown_dependencies.map((one) => html`<p key=${one.depends_on} class="warning">It depends on ${one.depends_on}, which is not registered.</p>`)}
    <${Table} label="changed fields" empty="No field changes." rows=${change.differences} keyOf=${(one) => one.field}
      columns=${[
        ["Field", (one) => html`<code>${one.field}</code>`],
        ["Before", (one) => html`<del>${shown(one.before)}</del>`, "text"],
        ["After", (one) => html`<ins>${shown(one.after)}</ins>`, "text"],
      ]} />
    <${Instants} title="Instants that come" found=${change.instants_added} until=${change.until} />
    <${Instants} title="Instants that go" found=${change.instants_removed} until=${change.until} />
    ${change.fires_at_once.length > 0 ? html`<p class="warning">Fires at once for ${change.fires_at_once.map((time) => stamp(time)).join(", ")}.</p>` : null}
    ${change.clock_changes.map((one) => html`<p key=${one.at} class="warning">On ${stamp(one.at)} the clocks go ${one.kind === "gap" ? "forward" : "back"}: ${one.local_times.join(", ")} ${({ skipped: "is skipped", shifted: "is shifted", once: "comes once", twice: "comes twice" })[one.effect] || one.effect}.</p>`)}
  <//>`)}`;
}

function Instants({ title, found, until }) {
  if (found.count === 0) return null;
  return html`<h3>${title}: ${counted(found.count, "instant")} until ${stamp(until)}</h3><p>${found.first.slice(0, 8).map((time) => stamp(time)).join(", ")}${found.count > 8 ? " …" : ""}</p>`;
}

function shown(value) {
  return value === null || value === undefined ? "–" : typeof value === "string" ? value : jsonText(value);
}
