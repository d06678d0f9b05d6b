// Templates. What a template inserts is text: Preact makes text nodes of it, and never HTML.

import htm from "../vendor/htm.js";
import { h } from "../vendor/preact.js";

export const html = htm.bind(h);
export { Component, createContext, Fragment, render } from "../vendor/preact.js";
export { useCallback, useContext, useEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
