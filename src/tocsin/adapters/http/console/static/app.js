// The console: finds the page of an address, and shows it inside the frame.

import { Component, html, render, useEffect, useState } from "./lib/html.js";
import { followLinks, usePlace } from "./lib/router.js";
import { isPassing, pauseAfter } from "./lib/api.js";
import { permitStream } from "./lib/live.js";
import { isSameCaller, keepSession, loadSession, Viewer } from "./lib/session.js";
import { Empty, Refusal } from "./components/basics.js";
import { Layout } from "./components/layout.js";
import { Replaced, SignIn } from "./pages/sign-in.js";

/** The module and the component of each page. A page is loaded when it is first shown. */
const PAGES = {
  now: ["./pages/now.js", "Now"],
  jobs: ["./pages/jobs.js", "Jobs"],
  "new-job": ["./pages/edit-job.js", "NewJob"],
  executions: ["./pages/executions.js", "Executions"],
  "dead-letters": ["./pages/dead-letters.js", "DeadLetters"],
  queues: ["./pages/queues.js", "Queues"],
  agents: ["./pages/agents.js", "Agents"],
  silences: ["./pages/silences.js", "Silences"],
  schedule: ["./pages/schedule.js", "Schedule"],
  events: ["./pages/events.js", "Events"],
  changes: ["./pages/changes.js", "Changes"],
  "what-if": ["./pages/what-if.js", "WhatIf"],
};
/** Pages of one thing, such as `/console/jobs/NAME`. */
const DETAILS = {
  jobs: ["./pages/job.js", "Job"],
  "edit-job": ["./pages/edit-job.js", "EditJob"],
  executions: ["./pages/execution.js", "Execution"],
  "dead-letters": ["./pages/dead-letters.js", "DeadLetter"],
};

/** Return the page that opens first: callers that see no executions have no use for Now. */
function homeOf(viewer) {
  return viewer.permissions.includes("history") ? "now" : "jobs";
}

function pageOf(parts, home) {
  const [kind = home, ...rest] = parts;
  const pages = rest.length > 0 ? DETAILS : PAGES;
  return Object.hasOwn(pages, kind) ? pages[kind] : undefined;
}

class Guard extends Component {
  constructor() {
    super();
    this.state = { error: null };
  }

  static getDerivedStateFromError(error) {
    return { error };
  }

  componentDidUpdate(before) {
    if (before.place !== this.props.place && this.state.error) this.setState({ error: null });
  }

  render() {
    if (this.state.error) {
      return html`<div class="refusal" role="alert"><strong>This page failed:</strong> ${String(this.state.error.message)}</div>`;
    }
    return this.props.children;
  }
}

function Page({ place, home }) {
  const found = pageOf(place.parts, home);
  const [shown, setShown] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    let isCurrent = true;
    setError(null);
    if (found) {
      const [file, name] = found;
      import(file).then(
        (module) => isCurrent && setShown({ file, view: module[name] }),
        () => isCurrent && setError(new Error("The page could not be loaded. Load the document again.")),
      );
    }
    return () => (isCurrent = false);
  }, [found]);
  if (!found) return html`<h1>No such page</h1><${Empty}>The console has no page with this address.<//>`;
  if (error) return html`<${Refusal} error=${error} />`;
  if (shown?.file !== found[0]) return html`<p class="loading" role="status">Loading …</p>`;
  return html`<${shown.view} key=${place.parts.join("/")} name=${place.parts[1]} rest=${place.parts.slice(2)} query=${place.query} />`;
}

function App() {
  const place = usePlace();
  const [known, setKnown] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    let viewer = null;
    let loads = 0;
    let failures = 0;
    let timer = null;
    const ended = () => setKnown((last) => last && { session: { ...last.session, required: true, signed_in: false }, viewer: null });
    const again = (load, refused) => {
      failures += 1;
      timer = setTimeout(load, pauseAfter(refused, failures));
    };
    const replaced = () => {
      clearTimeout(timer);
      const load = (loads += 1);
      const unlessOlder = (act) => (result) => load === loads && act(result); // answers may come in another order
      const loaded = (found) => {
        setError(null);
        failures = 0;
        if (!found.viewer) ended();
        else if (isSameCaller(found.viewer, viewer)) keep(found);
        else setKnown({ ...found, before: viewer });
      };
      const failed = (refused) => {
        // The page stays with what was typed: the API refuses its changes, because the token is of the session before.
        if (isPassing(refused)) again(replaced, refused);
        else setError(refused);
      };
      loadSession().then(unlessOlder(loaded), unlessOlder(failed));
    };
    const keep = (loaded) => {
      setError(null);
      failures = 0;
      viewer = loaded.viewer;
      if (viewer) permitStream(viewer.permissions.includes("history"), loaded.session.csrf_token || "");
      keepSession(loaded, { ended, replaced });
      setKnown(loaded);
    };
    const failedToBegin = (refused) => {
      setError(refused);
      if (isPassing(refused)) again(begin, refused);
    };
    const begin = () => loadSession().then(keep, failedToBegin);
    begin();
  }, []);
  if (error) return html`<main id="main"><${Refusal} error=${error} retry=${() => location.reload()} /></main>`;
  if (!known) return html`<p class="loading" role="status">Loading …</p>`;
  if (!known.viewer) return html`<${SignIn} session=${known.session} />`;
  if (known.before) return html`<${Replaced} viewer=${known.viewer} before=${known.before} />`;
  const home = homeOf(known.viewer);
  return html`<${Viewer.Provider} value=${known.viewer}>
    <${Layout} session=${known.session} page=${place.parts[0] || home}>
      <${Guard} place=${place}><${Page} place=${place} home=${home} /><//>
    <//>
  <//>`;
}

// A page that the browser kept from before a sign-out is not shown again.
addEventListener("pageshow", (event) => event.persisted && location.reload());
followLinks(document);
render(html`<${App} />`, document.getElementById("app"));
