// Agents: the processes of workers, what they can run, and how busy they are.

import { html } from "../lib/html.js";
import { post, v1 } from "../lib/api.js";
import { useResource } from "../lib/live.js";
import { to } from "../lib/router.js";
import { useMay } from "../lib/session.js";
import { ActionButton, ExecutionLink, listed, Loaded, State, Table, Time } from "../components/basics.js";
import { useTitle } from "../components/layout.js";

const REFRESH_MS = 5_000;
const MOST_LISTED = 8;

export function Agents() {
  useTitle("Agents");
  const may = useMay();
  const list = useResource(v1("agents", { limit: 500 }), { every: REFRESH_MS });
  return html`<h1>Agents</h1>
    <${Loaded} resource=${list}>${({ agents, next }) => html`
      <${Table} label="agents" empty="No worker has registered. Start one with: tocsin worker" keyOf=${(agent) => `${agent.name} ${agent.agent_id}`} rows=${agents}
        columns=${[
          ["Agent", (agent) => html`<span class="name">${agent.name}</span> <span class="id hint" title=${agent.agent_id}>${agent.agent_id.slice(-6)}</span>${agent.is_leader ? html` <span class="tag">leader</span>` : null}`],
          ["State", (agent) => html`<${State} of=${agent.state} label=${agent.state.toLowerCase()} />`],
          ["Load", (agent) => html`<${Load} agent=${agent} />`],
          ["Heard", (agent) => html`<${Time} at=${agent.heard_at} far />`],
          ["Queues", (agent) => agent.queues.map((name) => html`<a key=${name} href=${`${to("queues")}#${name}`}>${name}</a> `), "text"],
          ["Functions", (agent) => listed(agent.functions, MOST_LISTED), "text"],
          ["Runs", (agent) => agent.held.slice(0, MOST_LISTED).map((task) => html`<${ExecutionLink} key=${idOf(task)} id=${idOf(task)} /> `)],
          ["Host", (agent) => `${agent.host} ${agent.version}`],
          ...(may("cancel") ? [["", (agent) => html`<${AgentActions} agent=${agent} reload=${list.reload} />`]] : []),
        ]} />
      ${next ? html`<p class="hint">Only the first ${agents.length} agents are shown. The command line lists all of them.</p>` : null}`}
    <//>`;
}

function idOf(task) {
  return typeof task === "string" ? task : task.execution_id;
}

function Load({ agent }) {
  const most = agent.slots ?? agent.max_concurrent_jobs;
  return html`<meter min="0" max=${Math.max(most, 1)} value=${agent.held.length} aria-label="load"></meter> ${agent.held.length} of ${most}`;
}

function AgentActions({ agent, reload }) {
  if (agent.kind === "mq") return null; // it takes tasks from hip-62's queue, and learns of no decision
  const overHttp = agent.kind === "http";
  const act = (verb) => (reason) => post(v1(["agents", overHttp ? agent.agent_id : agent.name, verb]), { reason: reason || null });
  const isDisabled = agent.state === "DISABLED" || (overHttp && agent.state === "DRAINING");
  return html`<div class="actions">
    ${agent.state === "ENABLED"
      ? html`<${ActionButton} label="Drain" title=${`Drain ${agent.name}`} done=${reload} act=${act("drain")}
          details=${html`<p>${overHttp ? "It finishes what runs, takes nothing new, and ends." : "Its processes finish what runs, and take nothing new until they end. Stop them when they run nothing."}</p>`} />`
      : null}
    <${ActionButton} label=${isDisabled ? "Enable" : "Disable"} title=${`${isDisabled ? "Enable" : "Disable"} ${agent.name}`} frozen done=${reload} act=${act(isDisabled ? "enable" : "disable")}
      details=${html`<p>${details(overHttp, isDisabled)}</p>`} />
  </div>`;
}

function details(overHttp, isDisabled) {
  if (overHttp) return isDisabled ? "It gets tasks again." : "It gets no new tasks, also after a restart under its id. What runs goes on.";
  return isDisabled ? "Agents of this name get tasks again." : "Agents of this name get no new tasks, also after a restart. What runs goes on.";
}
