// Templates. What a template inserts is text: Preact makes text nodes of it, and never HTML.
//
// Some characters of a text would change how the text around them is read: controls, and those that reverse its
// direction. They are shown by their number.

import htm from "../vendor/htm.js";
import { h } from "../vendor/preact.js";

const UNSEEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

function seen(child) {
  if (Array.isArray(child)) return child.map(seen);
  if (typeof child !== "string") return child;
  return child.replace(UNSEEN, (character) => `⟨U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

const build = htm.bind((type, props, ...children) => h(type, props, ...children.map(seen)));

/** Build a template. One without an element around it gives its texts, or a list of them. */
export const html = (...parts) => seen(build(...parts));

export { Component, createContext, Fragment, render } from "../vendor/preact.js";
export { useCallback, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
