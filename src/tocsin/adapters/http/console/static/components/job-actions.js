// What a person may do with a job: trigger, pause, resume, delete. A button that would be refused is not shown.

import { html, useState } from "../lib/html.js";
import { post, reasonHeader, request, trigger, v1 } from "../lib/api.js";
import { jsonOf } from "../lib/input.js";
import { integerOf, jsonText, parseJson } from "../lib/json.js";
import { navigate, to } from "../lib/router.js";
import { ActionButton } from "./basics.js";
import { SilenceButton } from "./silence.js";

/** Buttons for a job. `job`: its details with `permitted`, as `/v1/jobs/{name}` answers; `reload` loads it again; `deleted(run)` is called when it is no more. */
export function JobActions({ job, reload, deleted = (run) => (run.isLeft ? reload() : navigate(to("jobs"))) }) {
  const may = (permission) => (job.permitted || []).includes(permission);
  const name = job.name;
  return html`<div class="actions">
    ${may("trigger") ? html`<${TriggerButton} job=${job} />` : null}
    ${may("cancel") ? html`<${SilenceButton} job=${name} done=${(run) => run.isLeft || navigate(to("silences"))} />` : null}
    ${may("register")
      ? html`<${ActionButton} label=${job.paused ? "Resume" : "Pause"} title=${`${job.paused ? "Resume" : "Pause"} ${name}`} frozen done=${reload}
          details=${html`<p>${job.paused ? "Instants that passed during the pause do not fire." : "Instants pass without firing until the job is resumed. What runs goes on."}</p>`}
          act=${(reason) => post(v1(["jobs", name, job.paused ? "resume" : "pause"]), { reason: reason || null })} />
        <${ActionButton} label="Delete" title=${`Delete ${name}`} danger done=${deleted}
          details=${html`<p>The job fires no more. What runs goes on, and the history remains.</p>`}
          act=${(reason) => request("DELETE", v1(["jobs", name]), { headers: reasonHeader(reason) })} />`
      : null}
  </div>`;
}

/** A form made from the job's `input_schema`, or a field of JSON if it has none. */
export function TriggerButton({ job }) {
  const definition = job.definition;
  const schema = definition.input_schema;
  const act = async (reason, form, key, run) => {
    const input = schema?.properties ? inputOf(schema, form) : jsonOf(form.get("input"));
    const execution = await trigger(job.name, { input }, reason, key);
    if (!run.isLeft) navigate(to("executions", execution));
  };
  return html`<${ActionButton} label="Trigger" title=${`Trigger ${job.name}`} act=${act}
    details=${schema?.properties ? html`<${InputFields} schema=${schema} values=${definition.input || {}} />` : html`<${JsonField} value=${definition.input} />`} />`;
}

function JsonField({ value }) {
  const text = value && Object.keys(value).length > 0 ? jsonText(value, 2) : "";
  return html`<label>Input, as a JSON object <textarea name="input" rows="4" spellcheck=${false} defaultValue=${text}></textarea></label>`;
}

const INPUT_TYPES = new Map([["date", "date"], ["time", "time"], ["email", "email"], ["uri", "url"]]);
const isRequired = (schema, name) => (schema.required || []).includes(name);

function kindOf(property) {
  const types = [property.type].flat().filter((type) => type && type !== "null");
  return types.length === 1 ? types[0] : "json";
}

function InputFields({ schema, values }) {
  return html`${Object.entries(schema.properties).map(([name, property]) => html`<${InputField} key=${name} name=${name} property=${property} value=${Object.hasOwn(values, name) ? values[name] : property.default} required=${isRequired(schema, name)} />`)}`;
}

function InputField({ name, property, value, required }) {
  const [kind] = useState(kindOf(property));
  const label = html`${property.title || name}${required ? " *" : ""}${property.description ? html` <span class="hint">${property.description}</span>` : null}`;
  const field = `input.${name}`;
  if (Array.isArray(property.enum)) {
    return html`<label>${label} <select name=${field}>
      ${required ? null : html`<option value="">–</option>`}
      ${property.enum.map((one) => html`<option value=${jsonText(one)} selected=${one === value}>${String(one)}</option>`)}
    </select></label>`;
  }
  if (kind === "boolean") return html`<label class="check"><input type="checkbox" name=${field} defaultChecked=${value === true} /> ${label}</label>`;
  if (kind === "integer" || kind === "number") {
    return html`<label>${label} <input type="number" name=${field} step=${kind === "integer" ? 1 : "any"} min=${property.minimum} max=${property.maximum} required=${required} defaultValue=${value ?? ""} /></label>`;
  }
  if (kind === "string") {
    const type = INPUT_TYPES.get(property.format) || "text";
    return html`<label>${label} <input type=${type} name=${field} minlength=${property.minLength} maxlength=${property.maxLength} required=${required} defaultValue=${value ?? ""} /></label>`;
  }
  return html`<label>${label} <textarea name=${field} rows="3" spellcheck=${false} required=${required} defaultValue=${value === undefined ? "" : jsonText(value, 2)}></textarea></label>`;
}

/** Return the input that a form holds. A field that is left empty is left out. */
function inputOf(schema, form) {
  const input = []; // entries, because a property may be named as one that every object has
  for (const [name, property] of Object.entries(schema.properties)) {
    const kind = kindOf(property);
    const text = form.get(`input.${name}`);
    if (kind === "boolean" && !Array.isArray(property.enum)) input.push([name, text !== null]);
    else if (text === null || text === "") continue;
    else if (Array.isArray(property.enum)) input.push([name, parseJson(text)]);
    else if (kind === "integer" || kind === "number") input.push([name, /^-?\d+$/.test(text) ? integerOf(text) : Number(text)]);
    else if (kind === "string") input.push([name, text]);
    else input.push([name, jsonOf(text)]);
  }
  return Object.fromEntries(input);
}
