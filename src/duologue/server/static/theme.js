// Light or dark before the first paint, which is why this is no module: modules run after it.
"use strict";
(() => {
  const NAME = "duologue.theme";
  const apply = (theme) => {
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme; // as the system says
  };
  let stored = "auto";
  try {
    stored = localStorage.getItem(NAME) ?? "auto";
  } catch {
    // Blocked storage: the switch works until the tab closes.
  }
  apply(stored);
  addEventListener("DOMContentLoaded", () => {
    for (const radio of document.querySelectorAll("input[name=theme]")) {
      radio.checked = radio.value === stored;
      radio.addEventListener("change", () => {
        apply(radio.value);
        try {
          localStorage.setItem(NAME, radio.value);
        } catch {
          // As above.
        }
      });
    }
  });
})();
