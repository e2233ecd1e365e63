// Keys that hold everywhere. They need Ctrl (or Cmd), so that no letter does anything by accident; letters alone act only on a
// message that has the focus (messages_view.js).

import { writesText } from "./dom.js";

const mac = /Mac|iPhone|iPad/.test(navigator.platform);

/** `acts` has escape (returns whether it did something), search, fresh, settings, help and undo (returns likewise). */
export function bindKeys(acts) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing) return;
    const key = event.key.toLowerCase();
    const modified = (mac ? event.metaKey : event.ctrlKey) && !event.altKey;
    const panelOpen = document.querySelector("dialog[open]") !== null;
    if (key === "escape") {
      if (panelOpen || !acts.escape()) return; // a panel closes by itself
    } else if (!modified || panelOpen) return;
    else if (key === "k" && !event.shiftKey) acts.search();
    else if (key === "o" && event.shiftKey) acts.fresh();
    else if (key === "," && !event.shiftKey) acts.settings();
    else if (key === "/" || key === "?") acts.help();
    else if (key === "z" && !event.shiftKey && !writesText(event.target)) {
      if (!acts.undo()) return;
    } else return;
    event.preventDefault();
  });
}
