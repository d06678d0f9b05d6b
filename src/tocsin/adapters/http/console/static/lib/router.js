// Pages have paths below /console, which the browser's history keeps; filters are in the query.

import { useEffect, useState } from "./html.js";

export const ROOT = "/console";

/** Return the address of a page: `to("jobs", name)`. */
export function to(...parts) {
  return [ROOT, ...parts.map(encodeURIComponent)].join("/");
}

export function navigate(href, { replace = false } = {}) {
  if (href === location.pathname + location.search + location.hash) return;
  history[replace ? "replaceState" : "pushState"](null, "", href);
  dispatchEvent(new Event("tocsin:navigated"));
}

/** Set or remove values of the query, and stay on the page. Without `replace`, the browser can go back. */
export function setQuery(changes, { replace = true } = {}) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === undefined || value === null || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  navigate(location.pathname + (text ? `?${text}` : ""), { replace });
}

function here() {
  const parts = location.pathname.slice(ROOT.length).split("/").filter(Boolean);
  return { parts: parts.map(decoded), query: Object.fromEntries(new URLSearchParams(location.search)) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Return the place: the parts of the path, and the query. */
export function usePlace() {
  const [place, setPlace] = useState(here);
  useEffect(() => {
    const moved = () => setPlace(here());
    addEventListener("popstate", moved);
    addEventListener("tocsin:navigated", moved);
    return () => {
      removeEventListener("popstate", moved);
      removeEventListener("tocsin:navigated", moved);
    };
  }, []);
  return place;
}

/** Follow links within the console without loading the document again. */
export function followLinks(root) {
  root.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    const isPlain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
    if (!link || !isPlain || link.target || link.origin !== location.origin) return;
    if (link.pathname !== ROOT && !link.pathname.startsWith(`${ROOT}/`)) return;
    if (link.hasAttribute("data-document")) return;
    event.preventDefault();
    navigate(link.pathname + link.search + link.hash);
    begin();
  });
}

/** Put the view and the focus at the beginning of the page. The control that was used may be gone, and the focus with it. */
export function begin() {
  scrollTo(0, 0);
  document.querySelector("main")?.focus({ preventScroll: true });
}
