// Charts over time, drawn by uPlot. Beside each is a table for those who cannot see it.

import { html, useEffect, useRef } from "../lib/html.js";
import { stamp } from "../lib/time.js";

let loading = null;

/** Load uPlot when the first chart is shown. */
export function loadCharts() {
  loading ??= import("../vendor/uplot.js").then((module) => module.default);
  return loading;
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const HEIGHT = 160;
const AROUND_S = 43_200;

/** Show a single value, which has a point because a line needs two, in the middle of a day: uPlot would show years. */
function rangeOf({ data: [times] }, least, most) {
  return times.length === 1 ? [times[0] - AROUND_S, times[0] + AROUND_S] : [least, most];
}

/** Lines over time. `times`: ISO times; `series`: [{label, colour: name of a CSS variable, values, format}]. */
export function Chart({ label, times, series, height = HEIGHT, unit = (value) => value }) {
  const place = useRef(null);
  const chart = useRef(null);
  const data = [times.map((time) => new Date(time).getTime() / 1000), ...series.map((one) => one.values)];
  const shape = `${series.map((one) => one.label).join()} ${height}`;

  useEffect(() => {
    let isGone = false;
    let observer = null;
    loadCharts().then((Plot) => {
      if (isGone || !place.current) return;
      const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
      const options = {
        width: Math.max(place.current.clientWidth, 100),
        height,
        legend: { show: false },
        cursor: { show: false },
        axes: [{ ...axis, values: (_, seconds) => seconds.map((one) => stamp(one * 1000).slice(5, 16)), space: 90 }, { ...axis, size: 60, values: (_, values) => values.map(unit) }],
        scales: { x: { range: rangeOf }, y: { range: (_, __, most) => [0, Math.max(most || 0, 1)] } },
        series: [
          {},
          ...series.map((one) => ({ label: one.label, stroke: colour(one.colour), width: 1.5, points: { size: 6, show: (plot) => plot.data[0].length === 1 } })),
        ],
      };
      chart.current = new Plot(options, data, place.current);
      observer = new ResizeObserver(() => place.current && chart.current?.setSize({ width: Math.max(place.current.clientWidth, 100), height }));
      observer.observe(place.current);
    });
    return () => {
      isGone = true;
      observer?.disconnect();
      chart.current?.destroy();
      chart.current = null;
    };
  }, [shape]);

  useEffect(() => {
    chart.current?.setData(data);
  }, [times, series]);

  return html`<div class="chart" role="img" aria-label=${label} ref=${place}></div>
    <details class="figures-of"><summary>As a table</summary>
      <div class="scroll" tabindex="0" role="region" aria-label=${`${label}, as a table`}><table>
        <thead><tr><th scope="col">Time</th>${series.map((one) => html`<th scope="col">${one.label}</th>`)}</tr></thead>
        <tbody>${times.map((time, i) => html`<tr key=${time}><td>${stamp(time)}</td>${series.map((one) => html`<td class="number">${one.values[i] === null || one.values[i] === undefined ? "" : unit(one.values[i])}</td>`)}</tr>`)}</tbody>
      </table></div>
    </details>`;
}
