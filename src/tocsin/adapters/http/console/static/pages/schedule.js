// The coming instants of all jobs: how dense they are, and which come at the same second.

import { html } from "../lib/html.js";
import { v1 } from "../lib/api.js";
import { DEFINITION_CHANGES, useResource } from "../lib/live.js";
import { setQuery, to } from "../lib/router.js";
import { relative, stamp } from "../lib/time.js";
import { Card, Choice, counted, JobLink, Loaded, Table } from "../components/basics.js";
import { Chart } from "../components/chart.js";
import { useTitle } from "../components/layout.js";

const WINDOWS = [["24", "24 hours"], ["168", "7 days"]];
const BUCKETS = { 24: 96, 168: 168 };

export function Schedule({ query }) {
  useTitle("Schedule");
  const hours = query.hours === "168" ? "168" : "24";
  const density = useResource(v1("schedule/density", { hours, buckets: BUCKETS[hours] }), { concerns: (type) => DEFINITION_CHANGES.has(type), every: 60_000 });
  return html`<h1>Schedule</h1>
    <search class="filters"><${Choice} label="Next" value=${hours} options=${WINDOWS} onChange=${(value) => setQuery({ hours: value })} /></search>
    <${Loaded} resource=${density}>${(found) => html`
      <div class="cards">
        <${Card} title="Density" wide aside=${found.truncated ? "not all jobs: counting took too long" : null}>
          <p>${counted(found.buckets.reduce((all, one) => all + one.count, 0), "instant")} in the next ${hours === "24" ? "24 hours" : "7 days"}</p>
          <${Chart} label="instants over time" times=${found.buckets.map((one) => one.start)} height=${220}
            series=${[{ label: "instants", colour: "--accent", values: found.buckets.map((one) => one.count) }]} />
        <//>
        <${Card} title="Many at the same second" wide>
          <${Table} label="herds" empty="No second has many instants." rows=${found.herds} keyOf=${(one) => one.at}
            columns=${[
              ["At", (one) => html`<time datetime=${one.at} title=${`${stamp(one.at, "UTC")} UTC`}>${stamp(one.at)}</time> <span class="far">${relative(one.at)}</span>`],
              ["Instants", (one) => one.count, "number"],
              ["How often", (one) => (one.times > 1 ? `${one.times.toLocaleString("en")} times` : "once"), "number"],
              ["Such as", (one) => html`${one.jobs.map((name) => html`<${JobLink} key=${name} name=${name} /> `)}${one.count > one.jobs.length ? `and ${one.count - one.jobs.length} more` : ""}`, "text"],
            ]} />
        <//>
        ${found.suggestions.length > 0
          ? html`<${Card} title="A spread that would help" wide>
              <${Table} label="suggested schedules" rows=${found.suggestions} keyOf=${(one) => one.job}
                columns=${[
                  ["Job", (one) => html`<${JobLink} name=${one.job} />`],
                  ["Schedule", (one) => html`<code>${one.schedule}</code>`],
                  ["Suggested", (one) => html`<code>${one.suggested}</code>`],
                  ["", (one) => html`<a href=${to("jobs", one.job)}>Edit</a>`],
                ]} />
            <//>`
          : null}
      </div>`}
    <//>`;
}
