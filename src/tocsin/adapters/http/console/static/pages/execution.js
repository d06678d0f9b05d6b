// One execution: its steps, its attempts over time, its log, its input and result, and its events.

import { html, useEffect, useRef, useState } from "../lib/html.js";
import { get, isPassing, path, pauseAfter, post, trigger, v1 } from "../lib/api.js";
import { jsonText } from "../lib/json.js";
import { isOfJob, useResource } from "../lib/live.js";
import { navigate, to } from "../lib/router.js";
import { milliseconds, relative, stamp } from "../lib/time.js";
import { ActionButton, Card, ExecutionLink, JobLink, Loaded, Refusal, State, StoredEvent, Table, Time } from "../components/basics.js";
import { Gantt } from "../components/gantt.js";
import { StepGraph } from "../components/graph.js";
import { useTitle } from "../components/layout.js";

const OPEN = new Set(["pending", "running"]);
const LINES_AT_ONCE = 200;
const MOST_LINES = 2_000;
const LOGS_MS = 1_500;
const MOST_LOGS_MS = 5_000; // after failures
const NEIGHBOURS = 20;
const LETTER_AWAITED_MS = 60_000; // after the end; the history may be behind the event of the dead letter
const PROGRESS_MS = 2_000; // the event stream has no events of progress

export function Execution({ name: id }) {
  useTitle(`Execution ${id}`);
  const onShards = useRef(new Set());
  const isOfThis = (_type, stored) =>
    stored.fact?.execution_id === id || onShards.current.has(stored.fact?.execution_id) || stored.subject?.includes(`.${id}.`);
  const details = useResource(v1(["executions", id]), { concerns: isOfThis, every: PROGRESS_MS, needs: (one) => OPEN.has(one.status) });
  onShards.current = new Set((details.value?.fan_out?.runs || []).map((run) => run.execution_id));
  return html`<${Loaded} resource=${details}>${(one) => html`<${Shown} one=${one} reload=${details.reload} isOfThis=${isOfThis} />`}<//>`;
}

function Shown({ one, reload, isOfThis }) {
  const may = (permission) => one.permitted.includes(permission);
  const id = one.execution_id;
  const events = useResource(v1(["executions", id, "events"]), { concerns: isOfThis });
  const facts = events.value?.facts || [];
  const plan = planOf(facts);
  const steps = plan ? plan.steps : Object.keys(one.steps).map((name) => ({ name, depends_on: [] }));
  const workflow = one.definition ? null : plan?.workflow?.nodes[0]; // of the Open Job Spec; a registered job may have callbacks too
  const isOpen = OPEN.has(one.status);
  const begin = one.attempts.map((each) => each.dispatched_at).filter(Boolean).sort()[0] || one.scheduled_time;
  const failed = [...one.attempts].reverse().find((each) => each.error);
  return html`<div class="heading">
      <h1><${JobLink} name=${one.job_name} /> <span class="id">${id}</span> <${State} of=${one.status} /></h1>
      <div class="actions">
        ${isOpen && may("cancel")
          ? html`<${ActionButton} label="Cancel" title="Cancel this execution" danger confirm="Cancel the execution" done=${reload}
              details=${html`<p>What runs is told to stop; steps that have not begun do not start.</p>`}
              act=${(reason) => post(v1(["executions", id, "cancel"]), { reason: reason || null })} />`
          : null}
        ${!isOpen && one.definition && may("trigger") ? html`<${RunAgain} one=${one} plan=${plan} />` : null}
        <${Neighbours} one=${one} />
      </div>
    </div>
    <dl class="facts">
      <dt>Scheduled</dt><dd><${Time} at=${one.scheduled_time} far /></dd>
      <dt>Trigger</dt><dd>${one.trigger}${one.by ? ` by ${one.by.kind ? `${one.by.kind}:` : ""}${one.by.identity}` : ""}</dd>
      ${workflow ? html`<dt>Workflow</dt><dd>${workflow.kind}${workflow.name ? ` “${workflow.name}”` : ""}</dd>` : null}
      ${one.waits_for ? html`<dt>Waits for</dt><dd>${one.waits_for}</dd>` : null}
      ${one.held_up_by.length > 0 ? html`<dt>Held up</dt><dd>${one.held_up_by.map((each) => html`<div key=${each.step + each.kind}>${each.step}: ${each.message}</div>`)}</dd>` : null}
      <dt>Started</dt><dd><${Time} at=${one.started_at} far /></dd>
      <dt>Ended</dt><dd><${Time} at=${one.completed_at} far />${one.duration_ms !== null ? ` after ${milliseconds(one.duration_ms)}` : ""}</dd>
      ${one.fan_out ? html`<dt>Shards</dt><dd>${together(one.fan_out)}</dd>` : null}
      ${one.shard ? html`<dt>Shard</dt><dd>${one.shard}</dd>` : null}
      ${one.definition ? html`<dt>Definition</dt><dd><a href=${to("jobs", one.job_name) + `?revision=${one.definition}`}>${one.definition}</a></dd>` : null}
      ${one.trace_url ? html`<dt>Trace</dt><dd><a href=${one.trace_url} target="_blank" rel="noopener noreferrer">${one.trace_id}</a></dd>` : null}
    </dl>
    ${one.error ? html`<div class="refusal" role="note"><strong>${one.error}</strong>
        ${failed?.error?.traceback ? html`<details><summary>Traceback</summary><pre tabindex="0">${failed.error.traceback}</pre></details>` : null}
        ${one.status === "failed" ? html`<${DeadLetterLink} one=${one} />` : null}</div>` : null}
    <div class="cards">
      ${one.fan_out ? html`<${Shards} fanOut=${one.fan_out} />` : null}
      <${Card} title="Steps" wide>
        ${steps.length > 1 ? html`<${StepGraph} steps=${steps} states=${one.steps} />` : null}
        <${StepTable} steps=${one.steps} callbacks=${callbacksOf(plan)} />
      <//>
      <${Card} title="Attempts" wide>
        <${Gantt} attempts=${one.attempts} from=${begin} until=${one.completed_at || new Date().toISOString()} />
      <//>
      <${Log} id=${id} isOpen=${isOpen} />
      <${Values} one=${one} />
      <${Card} title="Events" wide>
        <${Refusal} error=${events.error} />
        <${Table} label="events of this execution" rows=${facts} keyOf=${(stored) => `${stored.subject} ${stored.sequence}`}
          columns=${[
            ["Time", (stored) => html`<${Time} at=${stored.time} />`],
            ["Type", (stored) => stored.fact.type || stored.fact.event],
            ["Event", (stored) => html`<${StoredEvent} stored=${stored} />`, "text"],
          ]} />
      <//>
    </div>`;
}

/** A link to the dead letter, which the dead-letter sink may make a moment after the end. */
function DeadLetterLink({ one }) {
  const url = v1("dead-letters", { id_prefix: one.execution_id, job: one.job_name, unresolved: "false", limit: 1 });
  const isAwaited = (page) => page.dead_letters.length === 0 && Date.now() - Date.parse(one.completed_at) < LETTER_AWAITED_MS;
  const found = useResource(url, { concerns: (type) => type === "dead-lettered", every: PROGRESS_MS, needs: isAwaited });
  const letter = found.value?.dead_letters.find((each) => each.execution_id === one.execution_id);
  return letter ? html`<p><a href=${path(to("dead-letters", letter.id), { job: letter.job_name })}>Dead letter</a></p>` : null;
}

/** Return the plan of an execution among its events; undefined: they have none. */
function planOf(facts) {
  return facts.map((stored) => stored.fact.plan || stored.fact.admits?.plan).find(Boolean);
}

/** Return what the trigger of an execution gave, `{input, args}`; what is the definition's anyway may be among it.
 *
 * A trigger's input lies over that of each step with its own, and its arguments replace those of all steps: what a
 * step has otherwise was not given, and would change the step if it were sent.
 */
function givenTo({ input, args }, plan) {
  const steps = plan?.steps || [];
  const own = steps.map((step) => step.input ?? null).filter(Boolean);
  const isGiven = ([key, value]) => own.every((each) => Object.hasOwn(each, key) && jsonText(each[key]) === jsonText(value));
  return {
    input: input && Object.fromEntries(Object.entries(input).filter(isGiven)),
    args: steps.some((step) => (step.args ?? null) !== null) ? null : args,
  };
}

/** Start the job again with the input of this execution. */
function RunAgain({ one, plan }) {
  const what = one.input === null ? "the job's present input" : "the same input and arguments; keys that only the job's present input has are added";
  return html`<${ActionButton} label="Run again" title=${`Run ${one.job_name} again`}
    details=${html`<p>A new execution under the job's present definition, with ${what}.</p>
      ${plan?.steps.some((step) => step.input || step.args) ? html`<p>Steps with their own input or arguments have those of the present definition, under what the trigger gave.</p>` : null}
      ${one.shard || one.fan_out ? html`<p>It runs on all shards that the definition names.</p>` : null}`}
    act=${async (reason, _form, key, run) => {
      const known = plan || planOf((await get(v1(["executions", one.execution_id, "events"]))).facts);
      const execution = await trigger(one.job_name, givenTo(one, known), reason, key);
      if (!run.isLeft) navigate(to("executions", execution));
    }} />`;
}

/** The runs of the same job before and after this one. */
function Neighbours({ one }) {
  // Runs of a burst, of shards and of replays share a millisecond: this one is among them, and its neighbour follows it.
  const at = Date.parse(one.scheduled_time);
  const [since, until] = [at, at + 1].map((time) => new Date(time).toISOString());
  const before = useResource(v1("executions", { job: one.job_name, until, sort: "newest", limit: NEIGHBOURS }));
  const after = useResource(v1("executions", { job: one.job_name, since, sort: "oldest", limit: NEIGHBOURS }), { concerns: isOfJob(one.job_name) });
  const [previous, next] = [before, after].map((found) => following(found.value?.executions || [], one, at));
  return html`${previous ? html`<a class="button" href=${to("executions", previous.execution_id)}>← Previous run</a>` : null}
    ${next ? html`<a class="button" href=${to("executions", next.execution_id)}>Next run →</a>` : null}`;
}

/** Return the run after this one in a list that begins at its millisecond. */
function following(runs, one, at) {
  const place = runs.findIndex((run) => run.execution_id === one.execution_id);
  return place >= 0 ? runs[place + 1] : runs.find((run) => Date.parse(run.scheduled_time) !== at);
}

/** The steps that run after all others of their node: name → `on_failure` and so on. */
function callbacksOf(plan) {
  const found = new Map();
  for (const node of plan?.workflow?.nodes || []) {
    for (const kind of ["on_complete", "on_success", "on_failure"]) if (node[kind]) found.set(node[kind], kind);
  }
  return found;
}

function StepTable({ steps, callbacks }) {
  return html`<${Table} label="steps" empty="No step is dispatched yet." rows=${Object.entries(steps)} keyOf=${([name]) => name}
    columns=${[
      ["Step", ([name]) => (callbacks.has(name) && callbacks.get(name) !== name ? `${name} (${callbacks.get(name)})` : name)],
      ["Status", ([, step]) => html`<${State} of=${step.status} />`],
      ["Function", ([, step]) => step.function || ""],
      ["Queue", ([, step]) => (step.queue ? html`<a href=${to("queues") + `#${step.queue}`}>${step.queue}</a>` : "")],
      ["Attempt", ([, step]) => step.attempt || "", "number"],
      ["Took", ([, step]) => milliseconds(step.duration_ms), "number"],
      ["Worker", ([, step]) => step.worker || ""],
      ["Progress", ([, step]) => (step.progress ? html`<progress max="1" value=${step.progress.fraction} aria-label="progress"></progress> ${Math.round(100 * step.progress.fraction)} % ${step.progress.message}` : ""), "text"],
      ["Next attempt", ([, step]) => (step.next_attempt_at ? html`<time datetime=${step.next_attempt_at} title=${stamp(step.next_attempt_at)}>${relative(step.next_attempt_at)}</time>` : "")],
      ["Error", ([, step]) => step.error || "", "text"],
    ]} />`;
}

/** Return the state of all shards in words, such as `14 of 16 completed, 1 failed, 1 running`. */
function together({ runs, counts: { completed = 0, ...others } }) {
  return [`${completed} of ${runs.length} completed`, ...Object.entries(others).map(([status, number]) => `${number} ${status}`)].join(", ");
}

function Shards({ fanOut }) {
  return html`<${Card} title="Shards" wide>
    <${Table} label="executions on shards" rows=${fanOut.runs} keyOf=${(run) => run.execution_id}
      columns=${[
        ["Shard", (run) => run.shard],
        ["Status", (run) => html`<${State} of=${run.status} />`],
        ["Execution", (run) => html`<${ExecutionLink} id=${run.execution_id} />`],
        ["Error", (run) => run.error || "", "text"],
      ]} />
  <//>`;
}

/** The lines that handlers wrote, which follow while the execution runs. */
function Log({ id, isOpen }) {
  const [lines, setLines] = useState([]);
  const [error, setError] = useState(null);
  const after = useRef(0);
  const box = useRef(null);
  useEffect(() => {
    let isGone = false;
    let timer = null;
    let failures = 0;
    let wasOver = false; // lines may come after the end
    after.current = 0;
    setLines([]);
    const read = async () => {
      try {
        const answer = await get(v1(["executions", id, "logs"], { after: after.current, limit: LINES_AT_ONCE }));
        if (isGone) return;
        setError(null);
        failures = 0;
        if (answer.lines.length > 0) {
          setLines((last) => [...last, ...answer.lines].slice(-MOST_LINES));
          after.current = answer.next;
        }
        if (answer.lines.length === LINES_AT_ONCE) timer = setTimeout(read, 0);
        else if (answer.lines.length > 0 || !wasOver) timer = setTimeout(read, LOGS_MS);
        wasOver = answer.is_over;
      } catch (refused) {
        if (isGone) return;
        setError(refused);
        failures += 1;
        if (isPassing(refused)) timer = setTimeout(read, pauseAfter(refused, failures, MOST_LOGS_MS));
      }
    };
    read();
    return () => {
      isGone = true;
      clearTimeout(timer);
    };
  }, [id]);
  useEffect(() => {
    // Follow the end, unless the reader has scrolled up.
    const element = box.current;
    if (element && element.scrollHeight - element.scrollTop - element.clientHeight < 200) element.scrollTop = element.scrollHeight;
  }, [lines]);
  return html`<${Card} title="Log" wide aside=${isOpen ? "follows" : null}>
    <${Refusal} error=${error} />
    ${lines.length === 0
      ? html`<p class="empty">No lines.</p>`
      : html`<div class="log" ref=${box} tabindex="0" role="log" aria-label="log lines">${lines.map((line) => html`<div key=${line.sequence} class=${`line line-${line.level}`}>${stamp(line.time).slice(11)} ${line.step}${line.attempt > 1 ? `#${line.attempt}` : ""} ${line.level}: ${line.text}</div>`)}</div>`}
  <//>`;
}

function Values({ one }) {
  const shown = [["Input", one.input], ["Arguments", one.args], ["Result", one.result]];
  return shown
    .filter(([, value]) => value !== null && value !== undefined && !(typeof value === "object" && Object.keys(value).length === 0))
    .map(([title, value]) => html`<${Card} key=${title} title=${title}><pre tabindex="0">${jsonText(value, 2)}</pre><//>`);
}
