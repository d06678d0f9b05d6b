import { html, useState } from "../lib/html.js";
import { signIn } from "../lib/session.js";
import { Refusal } from "../components/basics.js";
import { useTitle } from "../components/layout.js";

export function SignIn({ session }) {
  useTitle("Sign in");
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    setError(null);
    try {
      await signIn(new FormData(event.target).get("token").trim());
      location.reload();
    } catch (refused) {
      setError(refused);
    }
  };
  const next = encodeURIComponent(location.pathname + location.search);
  return html`<main class="sign-in" id="main">
    <h1><img src="/console/assets/icon.svg" alt="" width="40" height="40" /> Tocsin</h1>
    ${session.provider ? html`<p><a class="button primary" data-document href=${`/console/sign-in?next=${next}`}>Sign in with the identity provider</a></p><p>or</p>` : null}
    <form onSubmit=${submit}>
      <label>Token <input type="password" name="token" required autocomplete="current-password" /></label>
      <p class="hint"><code>tocsin tokens create</code> makes one.</p>
      <${Refusal} error=${error} />
      <button type="submit" class="primary">Sign in</button>
    </form>
  </main>`;
}

/** A page whose session another window replaced: it does nothing as another caller without the user's consent. */
export function Replaced({ viewer, before }) {
  useTitle("Other sign-in");
  return html`<main class="sign-in" id="main">
    <h1><img src="/console/assets/icon.svg" alt="" width="40" height="40" /> Tocsin</h1>
    <div role="alert">
      <p>Another window signed this browser in as <strong>${viewer.identity}</strong> (${viewer.roles.join(", ")}).</p>
      <p>This page was opened as <strong>${before.identity}</strong> (${before.roles.join(", ")}). A browser has one session for all of its windows.</p>
    </div>
    <button class="primary" onClick=${() => location.reload()}>Continue as ${viewer.identity}</button>
  </main>`;
}
