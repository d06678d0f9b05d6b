// Silences: times in which notifications of some jobs are recorded and not sent, with who started them and why.

import { html } from "../lib/html.js";
import { reasonHeader, request, v1 } from "../lib/api.js";
import { useResource } from "../lib/live.js";
import { to } from "../lib/router.js";
import { useMay } from "../lib/session.js";
import { ActionButton, identityOf, JobLink, Loaded, Table, Time } from "../components/basics.js";
import { coverOf, SilenceButton } from "../components/silence.js";
import { useTitle } from "../components/layout.js";

const REFRESH_MS = 5_000;

export function Silences() {
  useTitle("Silences");
  const may = useMay();
  const list = useResource(v1("silences"), { every: REFRESH_MS });
  return html`<div class="heading"><h1>Silences</h1>
      ${may("cancel") || may("register") ? html`<div class="actions"><${SilenceButton} label="Start a silence" done=${list.reload} /></div>` : null}
    </div>
    <${Loaded} resource=${list}>${({ silences }) => html`
      <${Table} label="silences" empty="No silence is in force. Notifications are sent." rows=${silences} keyOf=${(silence) => silence.id}
        columns=${[
          ["Of", (silence) => html`<${Cover} of=${silence} />`, "text"],
          ["Until", (silence) => html`<${Time} at=${silence.until} far />`],
          ["Since", (silence) => html`<${Time} at=${silence.since} far />`],
          ["By", (silence) => identityOf(silence.by)],
          ["Reason", (silence) => silence.reason, "text"],
          ...(silences.some((silence) => silence.permitted.length > 0) ? [["", (silence) => html`<${EndButton} of=${silence} done=${list.reload} />`]] : []),
        ]} />`}
    <//>`;
}

function Cover({ of: silence }) {
  if (silence.job) return html`<${JobLink} name=${silence.job} />`;
  return silence.tag ? html`jobs with the tag <a class="tag" href=${`${to("jobs")}?tag=${encodeURIComponent(silence.tag)}`}>${silence.tag}</a>` : "all jobs";
}

function EndButton({ of: silence, done }) {
  if (!silence.permitted.includes("cancel")) return null;
  return html`<${ActionButton} label="End" title=${`End the silence of ${coverOf(silence)}`} confirm="End the silence" done=${done}
    details=${html`<p>Notifications from now on are sent. Those that the silence covered are not.</p>`}
    act=${(reason) => request("DELETE", v1(["silences", silence.id]), { headers: reasonHeader(reason) })} />`;
}
