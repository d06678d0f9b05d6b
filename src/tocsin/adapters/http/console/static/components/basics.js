// Small parts that all pages use.

import { newKey } from "../lib/api.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { jsonText } from "../lib/json.js";
import { begin, setQuery, to } from "../lib/router.js";
import { clock, LOCAL_ZONE, relative, stamp } from "../lib/time.js";

/** A state in words, with a colour and a sign that do not depend on each other. */
const SIGNS = {
  completed: "✓", failed: "✕", running: "▶", pending: "…", cancelled: "⊘", skipped: "↷", missed: "!", active: "●",
  paused: "‖", disabled: "○", late: "!", "on demand": "◇",
};

export function State({ of, label = of }) {
  return html`<span class=${`state state-${String(of).replaceAll(" ", "-")}`}><span aria-hidden="true">${SIGNS[of] || "•"}</span> ${label}</span>`;
}

const TICK_MS = 5_000;
const ticking = new Set();
setInterval(() => ticking.forEach((tick) => tick(Date.now())), TICK_MS);

/** Show a component again every few seconds, because the distance of its times grows. */
function useTick() {
  const [, tick] = useState(0);
  useEffect(() => {
    ticking.add(tick);
    return () => ticking.delete(tick);
  }, []);
}

/** A time in the viewer's zone and beside it how far it is; the title has UTC and, if given, the job's zone. */
export function Time({ at, zone, far = false }) {
  useTick();
  if (!at) return html`<span class="none">–</span>`;
  const titles = [`${stamp(at)} ${LOCAL_ZONE}`, `${stamp(at, "UTC")} UTC`];
  if (zone && zone !== "UTC" && zone !== LOCAL_ZONE) titles.splice(1, 0, `${stamp(at, zone)} ${zone}`);
  return html`<time datetime=${at} title=${titles.join("\n")}>${clock(at)}${far ? html` <span class="far">${relative(at)}</span>` : null}</time>`;
}

export function JobLink({ name }) {
  return html`<a class="name" href=${to("jobs", name)}>${name}</a>`;
}

export function ExecutionLink({ id, children }) {
  return html`<a class="id" href=${to("executions", id)} title=${id}>${children || short(id)}</a>`;
}

/** The identity in an event, with its kind and where its request came from. */
export function identityOf(by) {
  if (!by) return "";
  return `${by.kind ? `${by.kind}:` : ""}${by.identity}${by.source ? ` (${by.source})` : ""}`;
}

export function short(id) {
  const text = String(id);
  return text.length > 13 ? `…${text.slice(-8)}` : text;
}

/** A problem of the API in its own words, with its stable code. */
export function Refusal({ error, retry }) {
  if (!error) return null;
  return html`<div class="refusal" role="alert">
    <strong>${error.message}</strong> <code>${error.code}</code>
    ${(error.errors || []).length > 0 ? html`<ul>${error.errors.map((one) => html`<li>${one.job ? `${one.job}: ` : ""}<code>${one.field}</code>: ${one.right}</li>`)}</ul>` : null}
    ${retry ? html` <button onClick=${retry}>Try again</button>` : null}
  </div>`;
}

/** Show the refusal of an action whose dialog or page was left, above the page that is shown. */
function announceRefusal(action, error) {
  dispatchEvent(new CustomEvent("tocsin:refused", { detail: { action, error } }));
}

/** The last refusal of an action whose dialog or page was left. */
export function LateRefusal() {
  const [late, setLate] = useState(null);
  useEffect(() => {
    const show = ({ detail }) => setLate(detail);
    addEventListener("tocsin:refused", show);
    return () => removeEventListener("tocsin:refused", show);
  }, []);
  if (!late) return null;
  return html`<section class="late-refusal" aria-label="Refused action">
    <p>Not done: ${late.action} <button onClick=${() => setLate(null)}>Dismiss</button></p>
    <${Refusal} error=${late.error} />
  </section>`;
}

/** What a resource gives: its page, a refusal, or a sign that it loads. */
export function Loaded({ resource, children }) {
  if (resource.value === null) {
    if (resource.error) return html`<${Refusal} error=${resource.error} retry=${resource.reload} />`;
    return html`<p class="loading" role="status">Loading …</p>`;
  }
  return html`${resource.error ? html`<${Refusal} error=${resource.error} retry=${resource.reload} />` : null}${children(resource.value)}`;
}

/** An event of the log; its content is written when a reader opens it, because there may be hundreds of large ones. */
export function StoredEvent({ stored }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details onToggle=${(event) => setOpen(event.target.open)}><summary class="id">${stored.subject}</summary>
    ${isOpen ? html`<pre tabindex="0">${jsonText(stored.fact, 2)}</pre>` : null}</details>`;
}

export function Empty({ children }) {
  return html`<p class="empty">${children}</p>`;
}

/** A section with a heading, and a link or control beside it. */
export function Card({ title, aside, wide = false, children }) {
  return html`<section class=${wide ? "card wide" : "card"} aria-label=${title}>
    <header><h2>${title}</h2>${aside ? html`<div class="aside">${aside}</div>` : null}</header>
    ${children}
  </section>`;
}

/** A table that scrolls by itself on a narrow screen. `columns`: [heading, cell of a row and its number, class]. */
export function Table({ columns, rows, keyOf, label, empty = "Nothing." }) {
  if (rows.length === 0) return html`<${Empty}>${empty}<//>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table>
      <thead><tr>${columns.map(([heading, , kind]) => html`<th scope="col" class=${kind}>${heading}</th>`)}</tr></thead>
      <tbody>
        ${rows.map((row, index) => html`<tr key=${keyOf(row)}>${columns.map(([, cell, kind]) => html`<td class=${kind}>${cell(row, index)}</td>`)}</tr>`)}
      </tbody>
    </table>
  </div>`;
}

/** The last outcomes of a job, oldest first, each a link to its execution. */
export function Strip({ outcomes }) {
  if (!outcomes || outcomes.length === 0) return html`<span class="none">no runs yet</span>`;
  return html`<span class="strip" role="list" aria-label="last outcomes">
    ${[...outcomes].reverse().map(
      (one) => html`<a role="listitem" key=${one.execution_id} class=${`mark mark-${one.status}`} href=${to("executions", one.execution_id)}
        title=${`${one.status}, ${stamp(one.scheduled_time)}`} aria-label=${`${one.status}, ${stamp(one.scheduled_time)}`}></a>`,
    )}
  </span>`;
}

/** Call a function when a component goes. Preact ends other effects later, after the next frame and timers that are due. */
function useEnd(end) {
  useLayoutEffect(() => end, []);
}

/** A dialog over the page. Escape and the cancel button close it. */
export function Dialog({ title, onClose, children }) {
  const element = useRef(null);
  const [opener] = useState(() => document.activeElement); // before the effect, which comes after the next frame
  useEffect(() => {
    element.current.showModal();
    return () => (opener.isConnected ? opener : document.querySelector("main")).focus(); // a browser does not do so for a dialog that is removed
  }, []);
  const closed = ({ target }) => target.isConnected && onClose(); // reported with the next frame: another may be open then
  return html`<dialog ref=${element} aria-label=${title} onClose=${closed} onCancel=${onClose}>
    <h2>${title}</h2>
    ${children}
  </dialog>`;
}

/** A button that asks for a reason, then acts. A refusal stays in the dialog.
 *
 * `needsReason`: the reason may not be empty. `act(reason, form, key, run)` returns a promise; each opening has another `key`, for a POST that must have its effect once. `details`: what the dialog shows above the reason. `prepare(run)` is called when it opens.
 * `done(run)` is called after the action, also if the dialog or the page was left meanwhile (`run.isLeft`): then it may not navigate. A refusal is then shown above the page.
 * `inSteps`: the action sends several requests, and none after `run.isStopped`: the user can stop it, and to leave the dialog or the page stops it. It has `done` also after a refusal, because some requests had their effect.
 * `frozen`: the dialog does what it said when it opened, although the page around it follows what others do.
 */
export function ActionButton({ label, done, danger = false, asksReason = true, needsReason = false, inSteps = false, prepare, children, frozen = false, ...present }) {
  const [isOpen, setOpen] = useState(false);
  const [error, setError] = useState(null);
  const [running, setRunning] = useState(null);
  const reason = useRef("");
  const key = useRef("");
  const opened = useRef(null);
  const run = useRef({ isStopped: true, isLeft: true });
  const leave = () => Object.assign(run.current, { isStopped: true, isLeft: true });
  useEnd(leave);
  const isBusy = running !== null && running === run.current; // not an older run, whose dialog was left
  const { title, act, details, confirm = label } = (frozen && isOpen && opened.current) || present;
  const submit = async (event) => {
    event.preventDefault();
    const mine = run.current; // the dialog may be left, and opened again, before the action ends
    mine.isStopped = false;
    setRunning(mine);
    setError(null);
    try {
      await act(reason.current.trim(), new FormData(event.target), key.current, mine);
      if (!mine.isLeft) setOpen(false);
      done?.(mine);
    } catch (refused) {
      if (!mine.isLeft) setError(refused);
      else if (refused.code !== "stopped") announceRefusal(title || label, refused);
      if (mine.isLeft && inSteps) done?.(mine);
    } finally {
      setRunning((last) => (last === mine ? null : last));
    }
  };
  const open = () => {
    run.current = { isStopped: false, isLeft: false };
    prepare?.(run.current);
    key.current = newKey();
    opened.current = { confirm: label, ...present };
    setOpen(true);
  };
  const close = () => {
    leave();
    setOpen(false);
    setError(null);
    reason.current = "";
  };
  return html`<button class=${danger ? "danger" : ""} onClick=${open}>${children || label}</button>
    ${isOpen
      ? html`<${Dialog} title=${title || label} onClose=${close}>
          <form onSubmit=${submit}>
            ${details}
            ${asksReason
              ? html`<label>Reason <input name="reason" maxlength="1000" required=${needsReason} autocomplete="off" placeholder="recorded in the log" onInput=${(event) => (reason.current = event.target.value)} /></label>`
              : null}
            <${Refusal} error=${error} />
            <div class="buttons">
              ${inSteps && isBusy
                ? html`<button type="button" onClick=${() => (run.current.isStopped = true)}>Stop</button>`
                : html`<button type="button" onClick=${close}>Back</button>`}
              <button type="submit" class=${danger ? "danger primary" : "primary"} disabled=${isBusy}>${confirm}</button>
            </div>
          </form>
        <//>`
      : null}`;
}

/** A text field that reports its value after a pause in typing. */
export function SearchField({ label, value, onChange, placeholder }) {
  const timer = useRef(null);
  const [typed, setTyped] = useState(null); // not in the query yet; without it, new data would set the field back
  useEnd(() => clearTimeout(timer.current)); // a late change must not reach the query of the next page
  return html`<label class="field"><span>${label}</span>
    <input type="search" value=${typed ?? value} placeholder=${placeholder} autocomplete="off" spellcheck=${false}
      onInput=${(event) => {
        const text = event.target.value;
        setTyped(text);
        clearTimeout(timer.current);
        timer.current = setTimeout(() => {
          setTyped(null);
          onChange(text);
        }, 250);
      }} />
  </label>`;
}

export function Choice({ label, value, options, onChange }) {
  return html`<label class="field"><span>${label}</span>
    <select value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${options.map(([key, text]) => html`<option key=${key} value=${key} selected=${key === value}>${text}</option>`)}
    </select>
  </label>`;
}

/** The first names of a list, and the number of the others. */
export function listed(names, most) {
  return names.slice(0, most).join(", ") + (names.length > most ? ` and ${names.length - most} more` : "");
}

export function counted(number, singular, plural = `${singular}s`) {
  return `${Number(number).toLocaleString("en")} ${number === 1 ? singular : plural}`;
}

/** Buttons to the first and the next page of a list. `name`: the cursor in the query; `current`, `next`: cursors of pages. */
export function Pager({ name, current, next, label = "Next page" }) {
  const show = (cursor, options) => {
    setQuery({ [name]: cursor }, options);
    begin();
  };
  return html`<div class="pager">
    ${current ? html`<button onClick=${() => show(null)}>First page</button>` : null}
    ${next ? html`<button onClick=${() => show(next, { replace: false })}>${label}</button>` : null}
  </div>`;
}
