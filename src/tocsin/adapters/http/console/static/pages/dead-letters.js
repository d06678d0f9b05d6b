// Dead letters, in groups of one error or one by one; each can be replayed or resolved with a note.

import { html, useState } from "../lib/html.js";
import { post, request, v1 } from "../lib/api.js";
import { useResource } from "../lib/live.js";
import { navigate, setQuery, to } from "../lib/router.js";
import { useMay } from "../lib/session.js";
import { ActionButton, Card, Choice, counted, ExecutionLink, JobLink, Loaded, Refusal, SearchField, State, Table, Time } from "../components/basics.js";
import { useTitle } from "../components/layout.js";

const PAGE = 50;
const KINDS = [["true", "unresolved"], ["", "all"]];
const CHANGES = new Set(["dead-lettered", "resolved", "replayed"]);

export function DeadLetters({ query }) {
  useTitle("Dead letters");
  const may = useMay();
  const { job, error, cursor } = query;
  const unresolved = query.unresolved ?? "true";
  const isLive = { concerns: cursor ? null : (type) => CHANGES.has(type) };
  const page = useResource(v1("dead-letters", { job, error, unresolved, cursor, limit: PAGE }), isLive);
  const groups = useResource(v1("dead-letters/groups", { job, unresolved }), isLive);
  const [selected, setSelected] = useState(() => new Set());
  const filter = (changes) => setQuery({ ...changes, cursor: null });
  const reload = () => {
    setSelected(new Set());
    page.reload();
    groups.reload();
  };
  const mayReplay = may("replay") || may("register");
  const toggle = (id) =>
    setSelected((last) => {
      const next = new Set(last);
      if (!next.delete(id)) next.add(id);
      return next;
    });
  return html`<h1>Dead letters</h1>
    <search class="filters">
      <${SearchField} label="Job" value=${job || ""} onChange=${(text) => filter({ job: text })} />
      <${SearchField} label="Error" value=${error || ""} placeholder="text in the last error" onChange=${(text) => filter({ error: text })} />
      <${Choice} label="Show" value=${unresolved} options=${KINDS} onChange=${(value) => filter({ unresolved: value })} />
      ${mayReplay ? html`<${ReplayFilter} job=${job} error=${error} reload=${reload} />` : null}
      ${mayReplay && selected.size > 0 ? html`<${ReplaySelection} ids=${[...selected]} reload=${reload} />` : null}
    </search>
    <${Groups} groups=${groups} job=${job} />
    <${Loaded} resource=${page}>${({ dead_letters: letters, next }) => html`
      <${Table} label="dead letters" empty="No dead letter matches." rows=${letters} keyOf=${(one) => one.id}
        columns=${[
          ...(mayReplay ? [["", (one) => html`<input type="checkbox" aria-label=${`select ${one.id}`} checked=${selected.has(one.id)} onChange=${() => toggle(one.id)} />`]] : []),
          ["Dead letter", (one) => html`<a class="id" href=${to("dead-letters", one.id)}>${one.id.slice(-12)}</a>`],
          ["Job", (one) => html`<${JobLink} name=${one.job_name} />`],
          ["State", (one) => html`<${State} of=${one.resolved ? "completed" : "failed"} label=${one.resolved ? "resolved" : "unresolved"} />`],
          ["Attempts", (one) => one.attempts, "number"],
          ["Last attempt", (one) => html`<${Time} at=${one.last_attempt} far />`],
          ["Error", (one) => one.last_error || "", "text"],
        ]} />
      <div class="pager">
        ${cursor ? html`<button onClick=${() => setQuery({ cursor: null })}>First page</button>` : null}
        ${next ? html`<button onClick=${() => { const wanted = new URLSearchParams(location.search); wanted.set("cursor", next); navigate(`${location.pathname}?${wanted}`); }}>Next page</button>` : null}
      </div>`}
    <//>`;
}

function Groups({ groups, job }) {
  if (groups.error?.status === 404) return null;
  return html`<${Card} title="By error" wide>
    <${Loaded} resource=${groups}>${({ groups: found }) => html`
      <${Table} label="groups of dead letters" empty="None." rows=${found} keyOf=${(one) => `${one.job} ${one.error}`}
        columns=${[
          ["Number", (one) => one.count, "number"],
          ["Job", (one) => html`<${JobLink} name=${one.job} />`],
          ["Error", (one) => html`<a href=${`${to("dead-letters")}?${new URLSearchParams({ job: one.job, ...(one.contains ? { error: one.contains } : {}) })}`}>${one.error}</a>`, "text"],
          ["First", (one) => html`<${Time} at=${one.first} far />`],
          ["Last", (one) => html`<${Time} at=${one.last} far />`],
        ]} />`}
    <//>
  <//>`;
}

function ReplaySelection({ ids, reload }) {
  return html`<${ActionButton} label=${`Replay ${ids.length} selected`} title=${`Replay ${counted(ids.length, "dead letter")}`} done=${reload}
    act=${async (reason) => {
      for (const id of ids) await post(v1(["dead-letters", id, "replay"]), { reason: reason || null });
    }} />`;
}

/** Replay all that the filter finds, after a look at them. */
function ReplayFilter({ job, error, reload }) {
  const [preview, setPreview] = useState(null);
  const body = { job: job || null, error: error || null };
  const look = () => {
    setPreview(null);
    post(v1("dead-letters/replay-all"), { ...body, dry_run: true }).then(setPreview, (refused) => setPreview({ refused }));
  };
  return html`<${ActionButton} label="Replay all that match" title="Replay all unresolved dead letters that match" danger done=${reload} prepare=${look}
      details=${preview === null ? html`<p class="loading">Counting …</p>` : preview.refused ? html`<${Refusal} error=${preview.refused} />` : html`<p>${counted(preview.replayed.length, "dead letter")}${preview.complete ? "" : " at first; do it again for the rest"}.</p>
        <ul>${preview.replayed.slice(0, 5).map((one) => html`<li key=${one.id}>${one.job} <span class="id">${one.id}</span></li>`)}</ul>`}
      act=${(reason) => post(v1("dead-letters/replay-all"), { ...body, reason: reason || null })} />`;
}

export function DeadLetter({ name: id }) {
  useTitle(`Dead letter ${id}`);
  const may = useMay();
  const letter = useResource(v1(["dead-letters", id]), { concerns: (type) => CHANGES.has(type) });
  return html`<${Loaded} resource=${letter}>${(one) => html`
    <div class="heading">
      <h1>Dead letter <span class="id">${one.id}</span> <${State} of=${one.resolved ? "completed" : "failed"} label=${one.resolved ? "resolved" : "unresolved"} /></h1>
      ${may("replay") || may("register")
        ? html`<div class="actions">
            <${ActionButton} label="Replay" title="Replay this dead letter" done=${letter.reload}
              details=${html`<label>Input, as a JSON object; empty: as it was <textarea name="input" rows="4" spellcheck=${false}></textarea></label>`}
              act=${async (reason, form) => {
                const text = form.get("input").trim();
                const answer = await post(v1(["dead-letters", id, "replay"]), { input: text ? JSON.parse(text) : null, again: one.replays.length > 0, reason: reason || null });
                if (answer.execution_id) navigate(to("executions", answer.execution_id));
              }} />
            <${ActionButton} label=${one.resolved ? "Reopen" : "Resolve"} title=${one.resolved ? "Reopen this dead letter" : "Resolve this dead letter"} done=${letter.reload}
              act=${(reason) => request("PATCH", v1(["dead-letters", id]), { body: { resolved: !one.resolved, reason: reason || null } })} />
          </div>`
        : null}
    </div>
    <dl class="facts">
      <dt>Job</dt><dd><${JobLink} name=${one.job} /></dd>
      ${one.letter.execution_id ? html`<dt>Execution</dt><dd><${ExecutionLink} id=${one.letter.execution_id}>${one.letter.execution_id}<//></dd>` : null}
      ${one.resolution ? html`<dt>Resolution</dt><dd>${one.resolution.reason || ""} <${Time} at=${one.resolution.at || one.resolution.time} /></dd>` : null}
    </dl>
    ${one.replays.length > 0 ? html`<${Card} title="Replays"><ul>${one.replays.map((replay) => html`<li key=${replay.execution_id}><${ExecutionLink} id=${replay.execution_id} /> ${replay.status || ""}</li>`)}</ul><//>` : null}
    <${Card} title="What is kept" wide><pre tabindex="0">${JSON.stringify(one.letter, null, 2)}</pre><//>`}
  <//>`;
}
