// Days as squares, a week for each column, coloured by the worst that happened.

import { html } from "../lib/html.js";
import { stamp } from "../lib/time.js";
import { Table } from "./basics.js";

const SIZE = 13;
const GAP = 3;
const DAY_MS = 86_400_000;
const KINDS = ["completed", "failed", "skipped", "missed"];

/** `days`: [{day: "2026-03-29", completed, failed, skipped, missed}]; days without an entry are empty. */
export function HeatMap({ days, count, zone }) {
  const known = new Map(days.map((one) => [one.day, one]));
  const today = Date.parse(`${stamp(Date.now(), zone).slice(0, 10)}T00:00:00Z`);
  const first = today - (count - 1) * DAY_MS;
  const offset = (new Date(first).getUTCDay() + 6) % 7; // a week begins on Monday
  const squares = Array.from({ length: count }, (_, i) => {
    const day = new Date(first + i * DAY_MS).toISOString().slice(0, 10);
    const place = i + offset;
    return { day, x: Math.floor(place / 7) * (SIZE + GAP), y: (place % 7) * (SIZE + GAP), ...(known.get(day) || {}) };
  });
  const width = Math.ceil((count + offset) / 7) * (SIZE + GAP);
  const worst = days.reduce((all, one) => all + one.failed + one.missed, 0);
  return html`<svg class="heat" viewBox=${`0 0 ${width} ${7 * (SIZE + GAP)}`} width=${width} role="img" aria-label=${`${count} days, ${worst} failed or missed instants`}>
    ${squares.map((one) => html`<rect key=${one.day} class=${kindOf(one)} x=${one.x} y=${one.y} width=${SIZE} height=${SIZE} rx="2"><title>${words(one)}</title></rect>`)}
  </svg>
    <details class="figures-of"><summary>As a table</summary>
      <${Table} label="days" empty="No day has instants." rows=${squares.filter((one) => known.has(one.day))} keyOf=${(one) => one.day}
        columns=${[["Day", (one) => one.day], ...KINDS.map((kind) => [kind, (one) => one[kind] || 0, "number"])]} />
    </details>`;
}

function kindOf({ completed = 0, failed = 0, skipped = 0, missed = 0 }) {
  if (failed > 0) return "heat-failed";
  if (missed > 0) return "heat-missed";
  if (completed > 0) return "heat-completed";
  return skipped > 0 ? "heat-skipped" : "heat-none";
}

function words({ day, completed = 0, failed = 0, skipped = 0, missed = 0 }) {
  return `${day}: ${completed} completed, ${failed} failed, ${skipped} skipped, ${missed} missed`;
}
