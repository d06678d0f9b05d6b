// The attempts of an execution over time: waiting for a worker apart from running.

import { html } from "../lib/html.js";
import { duration, stamp } from "../lib/time.js";

const MOST = 500;

/** `attempts`: as `/v1/executions/{id}` lists them; `from`, `until`: ISO times; an open attempt lasts until then. */
export function Gantt({ attempts, from, until }) {
  const begin = Date.parse(from);
  const end = Math.max(Date.parse(until), begin + 1);
  const place = (time) => (100 * Math.min(Math.max(Date.parse(time) - begin, 0), end - begin)) / (end - begin);
  const rows = attempts.slice(0, MOST);
  return html`<div class="gantt" role="list" aria-label="attempts over time">
    ${rows.map((one) => {
      const dispatched = one.dispatched_at || one.started_at || from;
      const started = one.started_at || one.ended_at || until;
      const ended = one.ended_at || until;
      const kind = one.error ? "failed" : one.ended_at ? "completed" : "running";
      const waited = (Date.parse(started) - Date.parse(dispatched)) / 1000;
      const ran = one.started_at ? (Date.parse(ended) - Date.parse(started)) / 1000 : 0;
      const words = `${one.step}, attempt ${one.attempt}: waited ${duration(waited)}, ${one.started_at ? `ran ${duration(ran)}` : "not started"}${one.worker ? ` on ${one.worker}` : ""}`;
      return html`<div class="lane" role="listitem" key=${`${one.step} ${one.attempt}`} title=${`${words}\n${stamp(dispatched)} – ${stamp(ended)}`}>
        <span class="lane-name">${one.step}${one.attempt > 1 ? ` #${one.attempt}` : ""}</span>
        <svg class="lane-bars" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
          <rect class="bar-wait" x=${place(dispatched)} y="3" height="4" width=${Math.max(place(started) - place(dispatched), 0.2)} />
          ${one.started_at ? html`<rect class=${`bar-${kind}`} x=${place(started)} y="1" height="8" width=${Math.max(place(ended) - place(started), 0.4)} />` : null}
        </svg>
        <span class="lane-words">${one.started_at ? duration(ran) : "waits"}</span>
        <span class="unseen">${words}</span>
      </div>`;
    })}
    ${attempts.length > MOST ? html`<p class="hint">and ${attempts.length - MOST} more attempts</p>` : null}
  </div>`;
}
