// Short messages at the bottom: what happened, and how to take it back.

import { at, iconButton, make } from "./dom.js";

const SHOWN_MS = 9000;

/** Shows `text`; with `action` {label, run} also a button. Errors stay until they are closed. */
export function toast(text, { action = null, error = false } = {}) {
  const box = make("div", { className: error ? "toast error" : "toast" }, make("span", { textContent: text }));
  let timer = 0;
  const close = () => {
    clearTimeout(timer);
    box.remove();
  };
  if (action) {
    const button = make("button", { type: "button", className: "link", textContent: action.label });
    button.addEventListener("click", () => {
      close();
      action.run();
    });
    box.append(button);
  }
  const dismiss = iconButton("close", "Dismiss");
  dismiss.addEventListener("click", close);
  box.append(dismiss);
  const wait = () => {
    clearTimeout(timer);
    if (!error) timer = setTimeout(close, SHOWN_MS);
  };
  for (const event of ["pointerenter", "focusin"]) box.addEventListener(event, () => clearTimeout(timer));
  for (const event of ["pointerleave", "focusout"]) box.addEventListener(event, wait);
  wait();
  // Texts that a screen reader should read: errors at once.
  at(error ? "alerts" : "toasts").append(box);
}

/** Runs the newest toast's action, if there is one. */
export function undo() {
  const button = [...document.querySelectorAll("#toasts .link")].at(-1);
  button?.click();
  return Boolean(button);
}
