// The ledger of time: every instant of a job's schedule, coloured by its decision.
//
// Up to some hundreds of instants are marks; more are columns, which the server has counted. Above them are the
// definitions that were in force, and behind them the spans without a leading ticker.

import { html, useState } from "../lib/html.js";
import { v1 } from "../lib/api.js";
import { isOfJob, useResource } from "../lib/live.js";
import { setQuery } from "../lib/router.js";
import { duration, relative, stamp } from "../lib/time.js";
import { Card, ExecutionLink, JobLink, Loaded, State, Table } from "./basics.js";

const HOUR_MS = 3_600_000;
const SPANS = [["1 h", 1], ["6 h", 6], ["1 d", 24], ["7 d", 168], ["30 d", 720], ["90 d", 2_160]];
const SHARE_AHEAD = 0.15; // of the span, for what is still to come
const WIDTH = 1000;
const LANE = 46;
const TOP = 22;
const BUCKETS = 120;
/** Decisions from the bottom of a column to its top, with the class of their colour. */
const DECISIONS = [
  "completed", "fired", "running", "pending", "trigger", "future", "undecided", "skipped", "cancelled", "superseded",
  "excluded", "paused", "disabled", "future-paused", "future-disabled", "no-such-local-time", "missed", "failed",
];

export function kindOf(mark) {
  return String(mark.status || mark.decision).replaceAll("_", "-").replaceAll(" ", "-");
}

export function Timeline({ job, at }) {
  const [view, setView] = useState(() => viewOf(job, at));
  const url = v1(["jobs", job.name, "timeline"], {
    since: new Date(view.since).toISOString(),
    until: new Date(view.until).toISOString(),
    buckets: BUCKETS,
  });
  const found = useResource(url, { concerns: isOfJob(job.name) });
  const span = view.until - view.since;
  const move = (share) => setView({ since: view.since + share * span, until: view.until + share * span });
  const zoom = (hours) => setView(around((view.since + view.until) / 2, hours * HOUR_MS));
  const now = () => setView(around(Date.now() + (SHARE_AHEAD - 0.5) * span, span));
  const onKey = (event) => {
    if (event.target !== event.currentTarget && event.key === "Enter") return; // of a button in it
    const act = { ArrowLeft: () => move(-0.25), ArrowRight: () => move(0.25), "+": () => zoom(span / HOUR_MS / 2), "-": () => zoom((span / HOUR_MS) * 2), Home: now, Enter: () => setQuery({ at: middleOf(view) }) }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  };
  return html`<${Card} title="Ledger of time" wide aside=${html`<div class="actions">
      <button aria-label="earlier" onClick=${() => move(-0.5)}>←</button>
      ${SPANS.map(([label, hours]) => html`<button key=${label} aria-pressed=${Math.abs(span - hours * HOUR_MS) < 1000} onClick=${() => zoom(hours)}>${label}</button>`)}
      <button aria-label="later" onClick=${() => move(0.5)}>→</button>
      <button onClick=${now}>Now</button>
    </div>`}>
    <p class="hint">${stamp(view.since, job.timezone)} – ${stamp(view.until, job.timezone)} ${job.timezone}, ${duration(span / 1000)}</p>
    <div tabindex="0" role="group" aria-label="timeline: arrow keys move it, plus and minus zoom, Home shows now, Enter explains the time in its middle" class="timeline" onKeyDown=${onKey}>
      <${Loaded} resource=${found}>${(lines) => html`<${Picture} lines=${lines} view=${view} zone=${job.timezone} onPick=${(time) => setQuery({ at: new Date(time).toISOString() })} onZoom=${(since, until) => setView({ since, until })} />`}<//>
    </div>
    ${found.value?.truncated ? html`<p class="hint">Some instants, changes or gaps are missing: they are too many, or the history no longer has them.</p>` : null}
    ${at ? html`<${Why} key=${at} job=${job} at=${at} />` : html`<p class="hint">Choose a mark or a time to see why the job ran, or did not.</p>`}
    ${found.value ? html`<${Marks} lines=${found.value} zone=${job.timezone} onZoom=${(since, until) => setView({ since, until })} />` : null}
  <//>`;
}

/** Give the focus to the timeline before an action of a button that is gone after it. */
function fromTimeline(act) {
  return (event) => {
    event.currentTarget.closest(".card").querySelector(".timeline").focus();
    act();
  };
}

function middleOf(view) {
  return new Date(Math.round((view.since + view.until) / 2)).toISOString();
}

function around(middle, span) {
  return { since: Math.round(middle - span / 2), until: Math.round(middle + span / 2) };
}

/** Begin with about thirty instants, around a time that the address names or at the present. */
function viewOf(job, at) {
  const next = job.next_fire_times.map((time) => Date.parse(time));
  const step = next.length > 1 ? (next.at(-1) - next[0]) / (next.length - 1) : 24 * HOUR_MS;
  const span = Math.min(Math.max(30 * step, HOUR_MS), 90 * 24 * HOUR_MS);
  const asked = at ? Date.parse(at) : NaN;
  return Number.isNaN(asked) ? around(Date.now() + (SHARE_AHEAD - 0.5) * span, span) : around(asked, span);
}

function Picture({ lines, view, zone, onPick, onZoom }) {
  const span = view.until - view.since;
  const place = (time) => (WIDTH * (Date.parse(time) - view.since)) / span;
  const clamp = (x) => Math.min(Math.max(x, 0), WIDTH);
  const most = Math.max(1, ...(lines.buckets || []).map((one) => Object.values(one.counts).reduce((a, b) => a + b, 0)));
  const pick = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    onPick(view.since + (span * (event.clientX - box.left)) / box.width);
  };
  const nowAt = (WIDTH * (Date.now() - view.since)) / span;
  return html`<svg class="ledger" viewBox=${`0 0 ${WIDTH} ${TOP + LANE + 18}`} preserveAspectRatio="none" role="img" aria-label="instants over time; the table below lists them" onClick=${pick}>
    ${lines.gaps.map((gap) => html`<rect key=${gap.start} class="gap" x=${clamp(place(gap.start))} y="0" width=${Math.max(clamp(place(gap.end)) - clamp(place(gap.start)), 1)} height=${TOP + LANE}><title>${`no leading ticker, ${stamp(gap.start, zone)} – ${stamp(gap.end, zone)}`}</title></rect>`)}
    ${ticks(view, zone).map((tick) => html`<line key=${tick.x} class="tick" x1=${tick.x} x2=${tick.x} y1="0" y2=${TOP + LANE} />`)}
    ${lines.versions.map((one) => html`<path key=${one.sequence} class=${`version version-${one.kind}`} d=${`M${clamp(place(one.at))} 2 l5 8 h-10 z`}><title>${`${one.kind} at ${stamp(one.at, zone)}${one.by ? ` by ${one.by.identity || one.by}` : ""}${one.reason ? `: ${one.reason}` : ""}`}</title></path>`)}
    ${lines.marks
      ? lines.marks.map((mark, i) => html`<rect key=${`${mark.at} ${i}`} class=${`instant instant-${kindOf(mark)}`} x=${place(mark.at) - 2} y=${mark.decision === "trigger" ? 0 : TOP} width="4" height=${mark.decision === "trigger" ? TOP + LANE / 2 : LANE} onClick=${(event) => { event.stopPropagation(); onPick(Date.parse(mark.at)); }}><title>${words(mark, zone)}</title></rect>`)
      : (lines.buckets || []).map((one) => html`<${Column} key=${one.start} one=${one} place=${place} most=${most} zone=${zone} onZoom=${onZoom} />`)}
    <line class="middle" x1=${WIDTH / 2} x2=${WIDTH / 2} y1="0" y2=${TOP + LANE} />
    <line class="now" x1=${nowAt} x2=${nowAt} y1="0" y2=${TOP + LANE} />
  </svg>
  <div class="tick-labels" aria-hidden="true">${ticks(view, zone).map((tick) => html`<${TickLabel} key=${tick.x} tick=${tick} />`)}</div>`;
}

/** A label needs 75 pixels after its tick: it is hidden near the end, and on a narrow screen in the last quarter. */
function TickLabel({ tick }) {
  const room = tick.x > 0.9 * WIDTH ? "no-room" : tick.x > 0.74 * WIDTH ? "little-room" : "";
  return html`<span class=${room} style=${{ left: `${tick.x / (WIDTH / 100)}%` }}>${tick.label}</span>`;
}

/** Return the milliseconds by which the clocks of a zone are ahead of UTC at a time. */
function offsetOf(time, zone) {
  const seconds = Math.floor(time / 1000) * 1000;
  return Date.parse(`${stamp(seconds, zone).replace(" ", "T")}Z`) - seconds;
}

/** About six times at round places of the zone. */
function ticks(view, zone) {
  const span = view.until - view.since;
  const sizes = [300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 1_209_600].map((one) => one * 1000);
  const size = sizes.find((one) => span / one <= 7) || sizes.at(-1);
  const found = [];
  // A day begins at midnight of the zone, not of UTC.
  for (let local = Math.ceil((view.since + offsetOf(view.since, zone)) / size) * size; ; local += size) {
    const time = local - offsetOf(local - offsetOf(local, zone), zone);
    if (!(time < view.until)) break; // also if it is no number, as at the start of 1970 or in the year 10000
    if (time < view.since) continue;
    const text = stamp(time, zone);
    found.push({ x: (WIDTH * (time - view.since)) / span, label: size >= 86_400_000 ? text.slice(5, 10) : `${text.slice(5, 10)} ${text.slice(11, 16)}` });
  }
  return found;
}

function Column({ one, place, most, zone, onZoom }) {
  const x = place(one.start);
  const width = Math.max(place(one.end) - x - 0.5, 0.5);
  let y = TOP + LANE;
  const entries = DECISIONS.filter((kind) => countOf(one.counts, kind) > 0).map((kind) => [kind, countOf(one.counts, kind)]);
  const title = `${stamp(one.start, zone)} – ${stamp(one.end, zone)}\n${entries.map(([kind, number]) => `${number.toLocaleString("en")} ${kind}`).join(", ") || "no instants"}`;
  return html`<g onClick=${(event) => { event.stopPropagation(); onZoom(Date.parse(one.start), Date.parse(one.end)); }}>
    <title>${title}</title>
    <rect class="column" x=${x} y=${TOP} width=${width} height=${LANE} />
    ${entries.map(([kind, number]) => {
      const height = Math.max((LANE * number) / most, 1);
      y -= height;
      return html`<rect key=${kind} class=${`instant instant-${kind}`} x=${x} y=${y} width=${width} height=${height} />`;
    })}
  </g>`;
}

function countOf(counts, kind) {
  return Object.entries(counts).reduce((all, [name, number]) => (kindOf({ decision: name }) === kind ? all + number : all), 0);
}

function words(mark, zone) {
  const parts = [`${stamp(mark.at, zone)}: ${mark.decision}${mark.status && mark.status !== mark.decision ? ` ${mark.status}` : ""}`];
  if (mark.count > 1) parts.push(`${mark.count} instants`);
  if (mark.reason) parts.push(mark.reason);
  if (mark.late_by > 1) parts.push(`${duration(mark.late_by)} late`);
  return parts.join(", ");
}

/** The same marks as a table, for the keyboard and for readers of screens. */
function Marks({ lines, zone, onZoom }) {
  const rows = lines.marks || lines.buckets || [];
  return html`<details class="figures-of"><summary>As a table</summary>
    ${lines.marks
      ? html`<${Table} label="instants" empty="No instants in this time." rows=${rows} keyOf=${(mark) => `${mark.at} ${mark.execution_id || mark.decision}`}
          columns=${[
            ["At", (mark) => html`<button class="plain" onClick=${() => setQuery({ at: mark.at })}>${stamp(mark.at, zone)}</button>`],
            ["Decision", (mark) => html`<${State} of=${mark.status || mark.decision} />`],
            ["Execution", (mark) => (mark.execution_id ? html`<${ExecutionLink} id=${mark.execution_id} />` : "")],
            ["Reason", (mark) => mark.reason || "", "text"],
          ]} />`
      : html`<${Table} label="instants by time" empty="No instants in this time." rows=${rows.filter((one) => Object.keys(one.counts).length > 0)} keyOf=${(one) => one.start}
          columns=${[
            ["From", (one) => html`<button class="plain" title="show this time alone" onClick=${fromTimeline(() => onZoom(Date.parse(one.start), Date.parse(one.end)))}>${stamp(one.start, zone)}</button>`],
            ["Instants", (one) => Object.entries(one.counts).map(([kind, number]) => `${number} ${kind}`).join(", "), "text"],
          ]} />`}
  </details>`;
}

/** Why the job ran at a time, or why it did not. */
function Why({ job, at }) {
  const found = useResource(v1(["jobs", job.name, "why"], { time: at }), { concerns: isOfJob(job.name) });
  return html`<${Loaded} resource=${found}>${({ answers }) => html`<div class="why">
    ${answers.map((one) => html`<div key=${one.at}>
      <h3>${stamp(one.at, job.timezone)} ${job.timezone} <span class="hint">${stamp(one.at, "UTC")} UTC, ${relative(one.at)}</span></h3>
      <p aria-live="polite"><${State} of=${one.verdict} /> ${one.reason || one.exclusion || ""} ${one.execution_id ? html`<${ExecutionLink} id=${one.execution_id}>execution<//>` : null} ${one.outcome?.status ? html`<${State} of=${one.outcome.status} />` : null}</p>
      <dl class="facts">
        ${one.outcome ? html`<${OutcomeFacts} of=${one.outcome} />` : null}
        ${one.backfills.map((run) => html`<dt key=${run.execution_id}>Backfill</dt><dd>${run.backfill}: <${ExecutionLink} id=${run.execution_id} /> ${run.outcome ? html`<${State} of=${run.outcome.status} />` : null}</dd>`)}
        ${one.schedule ? html`<dt>Schedule then</dt><dd><code>${one.schedule}</code> (revision ${one.definition})</dd>` : null}
        ${one.moved_to ? html`<dt>Moves to</dt><dd><button class="plain" onClick=${fromTimeline(() => setQuery({ at: one.moved_to }))}>${stamp(one.moved_to, job.timezone)}</button></dd>` : null}
        ${one.outcome?.start_delay != null ? html`<dt>Jitter</dt><dd>delayed the start by ${duration(one.outcome.start_delay)}</dd>` : null}
        ${one.late_by > 1 ? html`<dt>Decided</dt><dd>${duration(one.late_by)} later${one.caught_up ? ", caught up" : ""}</dd>` : null}
        ${one.gap ? html`<dt>No leader</dt><dd>${stamp(one.gap.start || one.gap.since, job.timezone)} – ${stamp(one.gap.end || one.gap.until, job.timezone)}</dd>` : null}
        ${one.local_exists ? null : html`<dt>Local time</dt><dd>does not exist on that day: the clocks went forward</dd>`}
        ${one.repeated ? html`<dt>Local time</dt><dd>came twice on that day: the clocks went back</dd>` : null}
        ${one.by ? html`<dt>By</dt><dd>${one.by.identity}</dd>` : null}
        ${one.before ? html`<dt>Before</dt><dd><button class="plain" onClick=${fromTimeline(() => setQuery({ at: one.before }))}>${stamp(one.before, job.timezone)}</button></dd>` : null}
        ${one.after ? html`<dt>After</dt><dd><button class="plain" onClick=${fromTimeline(() => setQuery({ at: one.after }))}>${stamp(one.after, job.timezone)}</button></dd>` : null}
      </dl>
    </div>`)}
  </div>`}<//>`;
}

/** Why the execution of an instant ended so, or what it waits for. */
function OutcomeFacts({ of: outcome }) {
  const waits = outcome.held_up_by.map((one) => one.message);
  if (outcome.circle) waits.push(`jobs wait for each other: ${outcome.circle}`);
  if (outcome.acknowledgements) waits.push(`acknowledgements of agents: ${outcome.acknowledgements}`);
  return html`
    ${outcome.active_execution_id ? html`<dt>Skipped</dt><dd>because <${ExecutionLink} id=${outcome.active_execution_id} /> was active</dd>` : null}
    ${outcome.reason ? html`<dt>Reason</dt><dd>${outcome.reason}${outcome.by ? ` by ${outcome.by.identity}` : ""}</dd>` : null}
    ${outcome.error ? html`<dt>Error</dt><dd>${outcome.error}</dd>` : null}
    ${outcome.shards ? html`<dt>Shards</dt><dd>${outcome.shards}</dd>` : null}
    ${outcome.waits_for_jobs.length > 0 ? html`<dt>Waits for</dt><dd>${outcome.waits_for_jobs.map((name) => html`<${JobLink} key=${name} name=${name} /> `)}</dd>` : null}
    ${waits.length > 0 ? html`<dt>Held up</dt><dd>${[...new Set(waits)].join("; ")}</dd>` : null}`;
}
