// Copying, also where the browser keeps its clipboard from pages that come over plain http.

import { make } from "./dom.js";
import { toast } from "./toast.js";

/** Puts text into the clipboard and says so. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // The clipboard is only for pages that come over https or from this machine; the old way works everywhere.
    const field = make("textarea", { value: text, className: "sr-only" });
    document.body.append(field);
    const focused = document.activeElement;
    field.select();
    document.execCommand("copy");
    field.remove();
    focused?.focus?.();
  }
  toast("Copied");
}
