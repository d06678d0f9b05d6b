// The steps of an execution as a picture: dagre places them, SVG draws them. The steps are also a table on the page.

import { html, useEffect, useMemo, useState } from "../lib/html.js";

const WIDTH = 170;
const HEIGHT = 46;
const MOST = 400; // steps; a larger picture would not be readable
const MOST_PLACES = 1_500; // of steps and arrows; more take dagre longer than a few seconds, in which the page stands still

/** `steps`: [{name, depends_on}]; `states`: name → {status, attempt}. */
export function StepGraph({ steps, states }) {
  const [layout, setLayout] = useState(null);
  const shape = JSON.stringify(steps.map((step) => [step.name, step.depends_on]));
  const isLarge = useMemo(() => steps.length > MOST || placesOf(steps) > MOST_PLACES, [shape]);
  useEffect(() => {
    let isGone = false;
    if (isLarge) return undefined;
    import("../vendor/dagre.js").then((dagre) => !isGone && setLayout(placed(dagre.default || dagre, steps)));
    return () => (isGone = true);
  }, [shape]);
  if (isLarge) return html`<p class="hint">${steps.length} steps, and their dependencies: too many for a picture. The table has all of them.</p>`;
  if (!layout) return html`<p class="loading">Loading …</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="graph of steps">
    <svg class="graph" width=${layout.width} height=${layout.height} viewBox=${`0 0 ${layout.width} ${layout.height}`} role="img"
      aria-label=${steps.map((step) => `${step.name}: ${states[step.name]?.status || "pending"}`).join(", ")}>
      <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" class="arrow" /></marker></defs>
      ${layout.edges.map((edge) => html`<path key=${edge.key} class="edge" d=${edge.path} marker-end="url(#arrow)" />`)}
      ${layout.nodes.map((node) => {
        const status = states[node.name]?.status || "pending";
        return html`<g key=${node.name} class=${`node node-${status}`} transform=${`translate(${node.x - WIDTH / 2}, ${node.y - HEIGHT / 2})`}>
          <title>${`${node.name}: ${status}`}</title>
          <rect width=${WIDTH} height=${HEIGHT} rx="8" />
          <text x="10" y="19" class="node-name">${clipped(node.name)}</text>
          <text x="10" y="36" class="node-state">${status}${states[node.name]?.attempt > 1 ? `, attempt ${states[node.name].attempt}` : ""}</text>
        </g>`;
      })}
    </svg>
  </div>`;
}

/** Return the number of steps and of columns that arrows pass: dagre gives each of them a place. */
function placesOf(steps) {
  const columns = new Map();
  const known = new Map(steps.map((step) => [step.name, step.depends_on || []]));
  const waiting = new Map(steps.map((step) => [step.name, known.get(step.name).length]));
  const after = new Map(steps.map((step) => [step.name, []]));
  for (const [name, names] of known) for (const before of names) after.get(before)?.push(name);
  const ready = steps.filter((step) => waiting.get(step.name) === 0).map((step) => step.name);
  let size = steps.length;
  for (const name of ready) {
    const own = Math.max(0, ...known.get(name).map((before) => columns.get(before) + 1));
    columns.set(name, own);
    for (const before of known.get(name)) size += own - columns.get(before);
    for (const next of after.get(name)) {
      waiting.set(next, waiting.get(next) - 1);
      if (waiting.get(next) === 0) ready.push(next);
    }
  }
  return size;
}

function clipped(name) {
  return name.length > 20 ? `${name.slice(0, 19)}…` : name;
}

function placed({ Graph, graphlib, layout }, steps) {
  const graph = new (Graph || graphlib.Graph)();
  graph.setGraph({ rankdir: "LR", nodesep: 18, ranksep: 50, marginx: 8, marginy: 8 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const step of steps) graph.setNode(step.name, { width: WIDTH, height: HEIGHT });
  for (const step of steps) for (const before of step.depends_on || []) graph.setEdge(before, step.name);
  layout(graph);
  const { width, height } = graph.graph();
  const edges = graph.edges().map(({ v, w }) => {
    const [first, ...rest] = graph.edge(v, w).points;
    return { key: `${v} ${w}`, path: `M${first.x} ${first.y} ${rest.map((point) => `L${point.x} ${point.y}`).join(" ")}` };
  });
  const nodes = steps.map((step) => ({ name: step.name, ...graph.node(step.name) }));
  return { width: Math.ceil(width), height: Math.ceil(height), edges, nodes };
}
