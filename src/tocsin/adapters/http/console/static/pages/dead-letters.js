// Dead letters, in groups of one error or one by one; each can be replayed or resolved with a note.

import { html, useRef, useState } from "../lib/html.js";
import { path, post, request, v1 } from "../lib/api.js";
import { jsonOf } from "../lib/input.js";
import { jsonText } from "../lib/json.js";
import { useResource } from "../lib/live.js";
import { navigate, setQuery, to } from "../lib/router.js";
import { useMay } from "../lib/session.js";
import { ActionButton, Card, Choice, counted, ExecutionLink, JobLink, Loaded, Pager, Refusal, SearchField, State, Table, Time } from "../components/basics.js";
import { useTitle } from "../components/layout.js";

const PAGE = 50;
const PREVIEWED = 5;
const KINDS = [["true", "unresolved"], ["false", "all"]];
const CHANGES = new Set(["dead-lettered", "refused", "resolved", "replayed"]);

// Clients may bring ids of jobs, so dead letters of two jobs may have one id.
const nameOf = (letter) => `${letter.id} ${letter.job_name}`;
const pageOf = (id, job) => path(to("dead-letters", id), { job });

export function DeadLetters({ query }) {
  useTitle("Dead letters");
  const may = useMay();
  const { job, error, pattern, cursor } = query;
  const unresolved = query.unresolved ?? "true";
  const isLive = { concerns: cursor ? null : (type) => CHANGES.has(type) };
  const page = useResource(v1("dead-letters", { job, error, pattern, unresolved, cursor, limit: PAGE }), isLive);
  const groups = useResource(v1("dead-letters/groups", { job, unresolved }), isLive);
  const [selected, setSelected] = useState(() => new Map()); // rows by name, also of pages that are no longer shown
  const filter = (changes) => setQuery({ ...changes, cursor: null });
  const [replayed, setReplayed] = useState(0);
  const reload = () => {
    setSelected(new Map());
    page.reload();
    groups.reload();
  };
  const permits = (one) => one.permitted.includes("replay");
  const mayReplay = may("replay") || (page.value?.dead_letters || []).some(permits);
  const toggle = (letter) =>
    setSelected((last) => {
      const next = new Map(last);
      if (!next.delete(nameOf(letter))) next.set(nameOf(letter), letter);
      return next;
    });
  return html`<h1>Dead letters</h1>
    <search class="filters">
      <${SearchField} label="Job" value=${job || ""} onChange=${(text) => filter({ job: text })} />
      <${SearchField} label="Error" value=${error || ""} placeholder="text in the last error" onChange=${(text) => filter({ error: text })} />
      <${Choice} label="Show" value=${unresolved} options=${KINDS} onChange=${(value) => filter({ unresolved: value })} />
      ${pattern ? html`<button onClick=${() => filter({ pattern: null })}>Pattern: ${pattern.slice(0, 60)} ✕</button>` : null}
      ${mayReplay ? html`<${ReplayFilter} filters=${{ job, error, pattern }} replayed=${replayed} setReplayed=${setReplayed} reload=${reload} />` : null}
      ${mayReplay && selected.size > 0 ? html`<${ReplaySelection} letters=${[...selected.values()]} replayed=${toggle} done=${reload} />` : null}
    </search>
    ${replayed > 0 ? html`<p class="hint" role="status">${counted(replayed, "dead letter")} replayed. Each stays unresolved until its replay has completed.</p>` : null}
    <${Groups} groups=${groups} unresolved=${query.unresolved} />
    <${Loaded} resource=${page}>${({ dead_letters: letters, next }) => html`
      <${Table} label="dead letters" empty="No dead letter matches." rows=${letters} keyOf=${nameOf}
        columns=${[
          ...(mayReplay ? [["", (one) => (permits(one) ? html`<input type="checkbox" aria-label=${`select ${one.id}`} checked=${selected.has(nameOf(one))} onChange=${() => toggle(one)} />` : null)]] : []),
          ["Dead letter", (one) => html`<a class="id" href=${pageOf(one.id, one.job_name)}>${one.id.slice(-12)}</a>`],
          ["Job", (one) => html`<${JobLink} name=${one.job_name} />`],
          ["State", (one) => html`<${State} of=${one.resolved ? "completed" : "failed"} label=${one.resolved ? "resolved" : "unresolved"} />`],
          ["Attempts", (one) => one.attempts, "number"],
          ["Last attempt", (one) => html`<${Time} at=${one.last_attempt} far />`],
          ["Error", (one) => one.last_error || "", "text"],
          ...(mayReplay ? [["", (one) => (permits(one) ? html`<${LetterActions} id=${one.id} job=${one.job_name} isResolved=${one.resolved} isAgain=${one.resolved} done=${reload} />` : null)]] : []),
        ]} />
      <${Pager} name="cursor" current=${cursor} next=${next} />`}
    <//>`;
}

function Groups({ groups, unresolved }) {
  const listed = (one) => path(to("dead-letters"), { job: one.job, pattern: one.pattern, unresolved });
  return html`<${Card} title="By error" wide>
    <${Loaded} resource=${groups}>${({ groups: found, complete }) => html`${complete ? null : html`<p class="hint">These groups do not contain all dead letters.</p>`}
      <${Table} label="groups of dead letters" empty="None." rows=${found} keyOf=${(one) => `${one.job} ${one.pattern}`}
        columns=${[
          ["Number", (one) => one.count, "number"],
          ["Error", (one) => html`<a href=${listed(one)}>${one.pattern}</a>`, "text"],
          ["Job", (one) => html`<${JobLink} name=${one.job} />`],
          ["First", (one) => html`<${Time} at=${one.first} far />`],
          ["Last", (one) => html`<${Time} at=${one.last} far />`],
          ["Example", (one) => html`<a class="id" href=${pageOf(one.example, one.job)}>${one.example.slice(-12)}</a>`],
        ]} />`}
    <//>
  <//>`;
}

/** Replay the dead letters that are selected. Those that are refused stay selected. `replayed`: called with each of the others. */
function ReplaySelection({ letters, replayed, done }) {
  const preview = { matching: letters.map((one) => ({ id: one.id, job: one.job_name })), total: letters.length };
  const ofResolved = letters.filter((one) => one.resolved).length;
  return html`<${ActionButton} label=${`Replay ${letters.length} selected`} title=${`Replay ${counted(letters.length, "dead letter")}`} inSteps done=${done}
    details=${html`<${Preview} preview=${preview} />
      ${ofResolved > 0 ? html`<p>${counted(ofResolved, "of them is", "of them are")} resolved and will run again.</p>` : null}`}
    act=${async (reason, _form, key, run) => {
      const refused = [];
      for (const letter of letters) {
        if (run.isStopped) throw stopped();
        await replay(letter.id, letter.job_name, { again: letter.resolved, reason }, key).then(() => replayed(letter), (error) => refused.push(error));
      }
      if (refused.length > 0) throw notReplayed(refused.length, refused[0].message);
    }} />`;
}

/** Replay a dead letter. After a lost answer, the same `key` replays it no second time. */
function replay(id, job, { reason, ...options }, key) {
  const headers = { "Idempotency-Key": `${key}-${id}` }; // the query counts too
  return post(v1(["dead-letters", id, "replay"], { job }), { ...options, reason: reason || null }, { headers });
}

function notReplayed(number, first) {
  return Object.assign(new Error(`${counted(number, "dead letter")} not replayed. The first: ${first}`), { code: "not-possible" });
}

function stopped() {
  return Object.assign(new Error("Stopped before the last dead letter."), { code: "stopped" });
}

/** The first dead letters that a replay of a filter tries, and their number. An answer without any may have a `next`. */
async function previewOf(filters, run) {
  const look = (cursor) => post(v1("dead-letters/replay-all"), { ...filters, cursor, dry_run: true });
  const first = await look(null);
  let preview = first;
  while (preview.matching.length === 0 && preview.next !== null && !run.isLeft) preview = await look(preview.next);
  return { ...preview, total: first.total };
}

/** Replay all that the filter finds, after a look at them. After an error, the next try goes on where it occurred. */
function ReplayFilter({ filters, replayed, setReplayed, reload }) {
  const [found, setFound] = useState({ preview: null, error: null });
  const place = useRef(null);
  const look = (run) => {
    place.current = { filters, cursor: null, request: 0, replayed: 0, refused: [] };
    setReplayed(0);
    setFound({ preview: null, error: null });
    const show = (changes) => run.isLeft || setFound({ preview: null, error: null, ...changes });
    previewOf(filters, run).then((preview) => show({ preview }), (error) => show({ error }));
  };
  return html`<${ActionButton} label="Replay all that match" title="Replay all unresolved dead letters that match" danger inSteps done=${reload} prepare=${look}
    details=${html`<${Refusal} error=${found.error} /><${Preview} preview=${found.preview} />
      ${replayed > 0 ? html`<p role="status">${replayed.toLocaleString("en")}${found.preview?.total ? ` of ${found.preview.total.toLocaleString("en")}` : ""} replayed so far.</p>` : null}`}
    act=${async (reason, _form, key, run) => {
      const at = place.current;
      do {
        if (run.isStopped) throw stopped();
        const headers = { "Idempotency-Key": `${key}-${at.request}` };
        const body = { ...at.filters, cursor: at.cursor, reason: reason || null };
        const answer = await post(v1("dead-letters/replay-all"), body, { headers });
        Object.assign(at, { cursor: answer.next, request: at.request + 1, replayed: at.replayed + answer.replayed.length, refused: [...at.refused, ...answer.refused] });
        if (place.current === at) setReplayed(at.replayed); // it was not opened again
      } while (at.cursor !== null);
      const refused = at.refused.splice(0);
      if (refused.length > 0) throw notReplayed(refused.length, refused[0].reason);
    }} />`;
}

function Preview({ preview }) {
  if (preview === null) return null;
  const { matching, total } = preview;
  const hidden = (total ?? matching.length) - PREVIEWED;
  return html`<p>${counted(total ?? matching.length, "dead letter")}${total === null ? " at first, and then the others" : ""}.</p>
    <ul>${matching.slice(0, PREVIEWED).map((one) => html`<li key=${`${one.id} ${one.job}`}>${one.job} <span class="id">${one.id}</span></li>`)}</ul>
    ${hidden > 0 ? html`<p class="hint">and ${hidden.toLocaleString("en")} more</p>` : null}`;
}

/** Replay a dead letter, or resolve it.
 *
 * `isAgain`: it is resolved, or has replays. `replayed`: called with the answer to a replay unless the dialog was left; `done`: after each action.
 */
function LetterActions({ id, job, isResolved, isAgain, replayed, done }) {
  const label = isAgain ? "Replay again" : "Replay";
  return html`<div class="actions">
    <${ActionButton} label=${label} title=${`${label}: dead letter ${id.slice(-12)}`} done=${done}
      details=${html`${isAgain
          ? html`<p>${isResolved ? "It is resolved." : "It was replayed before."} It will run again.</p>`
          : html`<label class="check"><input type="checkbox" name="again" /> Run it also if an earlier replay is still open</label>`}
        <label>Input, as a JSON object; empty: as it was <textarea name="input" rows="4" spellcheck=${false}></textarea></label>
        <label class="check"><input type="checkbox" name="failed_only" /> Run only the steps that did not complete</label>`}
      act=${async (reason, form, key, run) => {
        const again = isAgain || form.get("again") === "on";
        const options = { input: jsonOf(form.get("input")), again, failed_only: form.get("failed_only") === "on" };
        const answer = await replay(id, job, { ...options, reason }, key);
        if (!run.isLeft) replayed?.(answer);
      }} />
    ${isResolved
      ? null
      : html`<${ActionButton} label="Resolve" title=${`Resolve dead letter ${id.slice(-12)}`} done=${done}
          details=${html`<p>It is done with, and is not replayed with others. This cannot be undone.</p>`}
          act=${(reason) => request("PATCH", v1(["dead-letters", id], { job }), { body: { resolved: true, reason: reason || null } })} />`}
  </div>`;
}

export function DeadLetter({ name: id, query }) {
  useTitle(`Dead letter ${id}`);
  const letter = useResource(v1(["dead-letters", id], { job: query.job }), { concerns: (type) => CHANGES.has(type) });
  return html`<${Loaded} resource=${letter}>${(one) => html`
    <div class="heading">
      <h1>Dead letter <span class="id">${one.id}</span> <${State} of=${one.resolved ? "completed" : "failed"} label=${one.resolved ? "resolved" : "unresolved"} /></h1>
      ${one.permitted.includes("replay")
        ? html`<${LetterActions} id=${one.id} job=${one.job} isResolved=${one.resolved} isAgain=${one.resolved || one.replays.length > 0} done=${letter.reload}
            replayed=${(answer) => answer.execution_id && navigate(to("executions", answer.execution_id))} />`
        : null}
    </div>
    <dl class="facts">
      <dt>Job</dt><dd><${JobLink} name=${one.job} /></dd>
      ${one.letter.execution_id ? html`<dt>Execution</dt><dd><${ExecutionLink} id=${one.letter.execution_id}>${one.letter.execution_id}<//></dd>` : null}
      ${one.resolution ? html`<dt>Resolution</dt><dd>${one.resolution.reason || ""} <${Time} at=${one.resolution.at || one.resolution.time} /></dd>` : null}
    </dl>
    ${one.replays.length > 0 ? html`<${Card} title="Replays"><ul>${one.replays.map((replay) => html`<li key=${replay.execution_id}><${ExecutionLink} id=${replay.execution_id} /> ${replay.status || ""}</li>`)}</ul><//>` : null}
    <${Card} title="What is kept" wide><pre tabindex="0">${jsonText(one.letter, 2)}</pre><//>`}
  <//>`;
}
