// Silences of notifications: who may start one, and of what.

import { html, useState } from "../lib/html.js";
import { post, v1 } from "../lib/api.js";
import { useMay, useViewer } from "../lib/session.js";
import { ActionButton } from "./basics.js";

/** Return what a silence covers, in words. */
export function coverOf(silence) {
  if (silence.job) return silence.job;
  return silence.tag ? `jobs with the tag ${silence.tag}` : "all jobs";
}

/** A button that starts a silence. `job`: the only job that it offers; without it, the viewer chooses. */
export function SilenceButton({ job, label = "Silence", done }) {
  const viewer = useViewer();
  const may = useMay();
  const mayAll = !job && may("cancel") && viewer.namespaces === null;
  const act = (reason, form, key) => {
    const kind = job ? "job" : form.get("kind") || "job";
    const chosen = kind === "all" ? { all: true } : { [kind]: job || form.get("of").trim() };
    return post(v1("silences"), { ...chosen, duration: form.get("duration").trim(), reason }, { headers: { "Idempotency-Key": key } });
  };
  return html`<${ActionButton} label=${label} title=${job ? `Silence ${job}` : "Start a silence"} confirm="Start the silence" needsReason act=${act} done=${done}
    details=${html`<p>Notifications are recorded, and not sent until the silence ends. Jobs run as before.</p><${SilenceFields} job=${job} mayAll=${mayAll} />`} />`;
}

function SilenceFields({ job, mayAll }) {
  const [kind, setKind] = useState("job");
  return html`
    ${mayAll
      ? html`<label>Of <select name="kind" value=${kind} onChange=${(event) => setKind(event.target.value)}>
          <option value="job">one job</option>
          <option value="tag">the jobs with a tag</option>
          <option value="all">all jobs</option>
        </select></label>`
      : null}
    ${job || kind === "all" ? null : html`<label>${kind === "tag" ? "Tag" : "Job"} <input name="of" required maxlength="255" autocomplete="off" spellcheck=${false} /></label>`}
    <label>For <input name="duration" required autocomplete="off" spellcheck=${false} placeholder="30m, 2h or 1d" /></label>`;
}
