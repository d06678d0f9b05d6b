// Who is signed in, and what that identity may do.

import { createContext, useContext } from "./html.js";
import { get, keepToken, request } from "./api.js";
import { jsonText } from "./json.js";

/** All documents of the console in this browser hear which session it has: its CSRF token, or null. They share its cookie. */
const documents = new BroadcastChannel("tocsin-session");
let own; // the CSRF token of the session with which this document was loaded
let heard;
let onOtherSession = () => {};
documents.onmessage = ({ data }) => {
  heard = data;
  if (own !== undefined) compare();
};

/** Compare a message once: a document that was slow to load may have sent a session that the browser no longer has. */
function compare() {
  const other = heard;
  heard = undefined;
  if (other === undefined || other === own) return;
  if (other === null || own === null) location.reload(); // to the sign-in, or from it
  else onOtherSession();
}

export const Viewer = createContext(null);

/** Return the caller as `/v1/me` describes it: identity, kind, roles, permissions. */
export function useViewer() {
  return useContext(Viewer);
}

/** Return a test whether the caller has a permission, for some job at least. */
export function useMay() {
  const viewer = useViewer();
  return (permission) => Boolean(viewer?.permissions.includes(permission));
}

/** Return the session and the caller; the caller is null if nobody is signed in although a token is required. */
export async function loadSession() {
  const session = await get("/console/session");
  if (session.required && !session.signed_in) return { session, viewer: null };
  return { session, viewer: await get("/v1/me") };
}

/** Act in a session that was loaded, until `calls.ended()` or `calls.replaced()`: then the browser has another session. */
export function keepSession({ session }, { ended, replaced }) {
  own = session.csrf_token ?? null;
  onOtherSession = replaced;
  keepToken(own, { ended, refused: replaced });
  if (own !== null) documents.postMessage(own);
  compare();
}

/** Return whether two sessions are of one caller with the same rights. */
export function isSameCaller(first, second) {
  return jsonText(first) === jsonText(second);
}

export async function signIn(token) {
  const { value } = await request("POST", "/console/session", { body: { token } });
  documents.postMessage(value.csrf_token);
}

export async function signOut() {
  await request("DELETE", "/console/session");
  documents.postMessage(null);
}
