// Who is signed in, and what that identity may do.

import { createContext, useContext } from "./html.js";
import { get, keepSession, request } from "./api.js";

/** All documents of the console in this browser hear when its session begins or ends. */
const documents = new BroadcastChannel("tocsin-session");
documents.onmessage = () => location.reload();

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
export async function loadSession(onSignedOut) {
  const session = await get("/console/session");
  keepSession(session, onSignedOut);
  if (session.required && !session.signed_in) return { session, viewer: null };
  return { session, viewer: await get("/v1/me") };
}

export async function signIn(token) {
  await request("POST", "/console/session", { body: { token } });
  documents.postMessage("begun");
}

export async function signOut() {
  await request("DELETE", "/console/session");
  documents.postMessage("ended");
}
