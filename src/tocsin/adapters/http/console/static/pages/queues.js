// Queues: depth, the oldest task, capacity, and functions without a worker.

import { html, useEffect } from "../lib/html.js";
import { post, v1 } from "../lib/api.js";
import { useResource } from "../lib/live.js";
import { to } from "../lib/router.js";
import { useMay } from "../lib/session.js";
import { ActionButton, Card, counted, JobLink, listed, Loaded, State, Table, Time } from "../components/basics.js";
import { useTitle } from "../components/layout.js";

const REFRESH_MS = 5_000;
const MOST_LISTED = 5;
const MOST_NAMESPACES = 50; // whose jobs are counted, each by a request

export function Queues() {
  useTitle("Queues");
  const may = useMay();
  const list = useResource(v1("queues", { limit: 500 }), { every: REFRESH_MS });
  const agents = useResource(v1("agents", { limit: 500 }), { every: REFRESH_MS });
  const slots = agents.value === null || agents.value.next ? null : slotsOf(agents.value.agents);
  const isLoaded = list.value !== null;
  useEffect(() => {
    // An address may name a queue: /console/queues#NAME.
    if (isLoaded && location.hash) document.getElementById(`queue-${location.hash.slice(1)}`)?.scrollIntoView({ block: "center" });
  }, [isLoaded, location.hash]);
  return html`<h1>Queues</h1>
    <${Loaded} resource=${list}>${({ queues, next }) => html`
      <${Table} label="queues" empty="There are no queues." keyOf=${(queue) => queue.name} rows=${queues}
        columns=${[
          ["Queue", (queue) => html`<span class="name" id=${`queue-${queue.name}`}>${queue.name}</span> ${queue.transport === "matched" ? "" : html`<span class="hint">${queue.transport}</span>`}`],
          ["State", (queue) => html`<${QueueState} queue=${queue} />`, "text"],
          ["Waiting", (queue) => queue.waiting ?? "–", "number"],
          ["Running", (queue) => queue.taken ?? "–", "number"],
          ["Slots", (queue) => slots?.get(queue.name) ?? (slots ? 0 : "–"), "number"],
          ["Oldest", (queue) => html`<${Time} at=${queue.oldest} far />`],
          ["Limits", (queue) => [queue.concurrency && `${queue.concurrency} at a time`, queue.rate].filter(Boolean).join(", ") || "none"],
          ["Agents", (queue) => (queue.agents.length === 0 ? html`<strong>none</strong>` : listed([...new Set(queue.agents.map((agent) => agent.name || agent))], MOST_LISTED))],
          ["Waiting functions", (queue) => html`<${WaitingFunctions} queue=${queue} />`, "text"],
          ["Jobs", (queue) => html`${queue.jobs.slice(0, MOST_LISTED).map((name) => html`<${JobLink} key=${name} name=${name} /> `)}${queue.jobs.length > MOST_LISTED ? html`<a href=${to("jobs") + `?queue=${encodeURIComponent(queue.name)}`}>and ${queue.jobs.length - MOST_LISTED} more</a>` : null}`, "text"],
          ...(may("cancel") ? [["", (queue) => html`<${QueueActions} queue=${queue} reload=${list.reload} />`]] : []),
        ]} />
      ${next ? html`<p class="hint">Only the first ${queues.length} queues are shown. The command line lists all of them.</p>` : null}
      <${Namespaces} queues=${queues} isWhole=${!next} />`}
    <//>`;
}

/** The slots of the enabled agents that serve each queue. An agent that serves several counts in each of them. */
function slotsOf(agents) {
  const slots = new Map();
  for (const agent of agents) {
    if (agent.state !== "ENABLED") continue;
    for (const queue of agent.queues) slots.set(queue, (slots.get(queue) ?? 0) + (agent.slots ?? agent.max_concurrent_jobs));
  }
  return slots;
}

/** The namespaces with their quotas, and how much of each is used. `isWhole`: `queues` has all that the viewer sees. */
function Namespaces({ queues, isWhole }) {
  const list = useResource(v1("namespaces"), { every: REFRESH_MS });
  if (list.error) return html`<${Loaded} resource=${list}>${() => null}<//>`;
  const namespaces = list.value?.namespaces || [];
  if (namespaces.length === 0) return null;
  const running = (name) => queues.filter((queue) => queue.name.startsWith(`${name}.`)).reduce((all, queue) => all + (queue.taken ?? 0), 0);
  return html`<${Card} title="Namespaces" wide aside=${counted(namespaces.length, "namespace")}>
    <${Table} label="quotas of namespaces" rows=${namespaces} keyOf=${(one) => one.name}
      columns=${[
        ["Namespace", (one) => html`<a class="name" href=${`${to("jobs")}?search=${encodeURIComponent(`${one.name}.`)}`}>${one.name}</a>`],
        ["Jobs", (one, index) => (index < MOST_NAMESPACES ? html`<${JobsOf} namespace=${one} />` : ofQuota(null, one.max_jobs))],
        ["Tasks at a time", (one) => ofQuota(isWhole ? running(one.name) : null, one.max_running)],
        ["Description", (one) => one.description, "text"],
      ]} />
  <//>`;
}

function JobsOf({ namespace }) {
  const details = useResource(v1(["namespaces", namespace.name]), { concerns: (type) => type === "defined" || type === "deleted" });
  return ofQuota(details.value?.jobs ?? null, namespace.max_jobs);
}

/** A use beside its quota; a quota that is used up stands out. `used`: null if it is not known. */
function ofQuota(used, quota) {
  const words = `${used === null ? "–" : used.toLocaleString("en")} of ${quota === null ? "any number" : quota.toLocaleString("en")}`;
  return quota !== null && used !== null && used >= quota ? html`<${State} of="late" label=${`${words}: used up`} />` : words;
}

function QueueState({ queue }) {
  if (queue.paused) {
    return html`<${State} of="paused" /> <span class="hint">since <${Time} at=${queue.paused.since} />${queue.paused.by ? ` by ${queue.paused.by}` : ""}${queue.paused.reason ? `: ${queue.paused.reason}` : ""}</span>`;
  }
  if (queue.held_by) return html`<${State} of="late" label=${`held by its ${queue.held_by} limit`} />`;
  return html`<${State} of="active" />`;
}

/** Functions of waiting tasks; those that no agent has stand out. */
function WaitingFunctions({ queue }) {
  const served = new Set(queue.functions);
  const entries = Object.entries(queue.waiting_functions || {});
  return html`${entries.slice(0, MOST_LISTED).map(([name, number]) =>
    served.has(name) ? html`<span key=${name}>${name} (${number}) </span>` : html`<strong key=${name} class="unserved">${name} (${number}): no agent has it </strong>`,
  )}${entries.length > MOST_LISTED ? `and ${entries.length - MOST_LISTED} more` : ""}`;
}

function QueueActions({ queue, reload }) {
  const verb = queue.paused ? "resume" : "pause";
  const label = queue.paused ? "Resume" : "Pause";
  return html`<div class="actions">
    <${ActionButton} label=${label} title=${`${label} queue ${queue.name}`} frozen done=${reload}
      details=${html`<p>${queue.paused ? "Its tasks go to agents again." : "No task of the queue starts until it is resumed. What runs goes on."}</p>`}
      act=${(reason) => post(v1(["queues", queue.name, verb]), { reason: reason || null })} />
    <${ActionButton} label="Purge" title=${`Purge queue ${queue.name}`} danger confirm="Cancel all waiting tasks" done=${reload}
      details=${html`<p>${queue.waiting === null ? "All" : queue.waiting} tasks that wait now are cancelled, with their executions. This cannot be undone.</p>`}
      act=${(reason) => post(v1(["queues", queue.name, "purge"]), { reason: reason || null })} />
  </div>`;
}
