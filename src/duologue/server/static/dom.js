// Elements in few words. Text is only ever set as text.

/** An element with properties, attributes (those with a dash, and `role`, `for`) and children. */
export function make(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role" || name === "for") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

/** An icon of the page's sprite. */
export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#i-${name}`);
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

/** A button that is an icon; `label` is its name and its tooltip. */
export function iconButton(name, label, properties = {}) {
  return make("button", { type: "button", className: "icon-button", title: label, "aria-label": label, ...properties }, icon(name));
}

export const at = (id) => document.getElementById(id);

/** Whether keys pressed there write text. */
export const writesText = (element) => element.matches?.("textarea, select, input:not([type=radio], [type=checkbox], [type=file])") ?? false;

/** Puts a field in the element's place until Enter or leaving it saves, or Escape does not; then calls `ended`. */
export function editInPlace(element, value, label, save, ended = () => {}) {
  const field = make("input", { className: "in-place", value, "aria-label": label, maxLength: 200, spellcheck: false });
  let open = true;
  const end = (keep) => {
    if (!open) return;
    open = false;
    const text = field.value.trim();
    const focused = document.activeElement === field;
    field.replaceWith(element);
    if (focused) element.focus();
    if (keep && text && text !== value) save(text);
    ended();
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing) end(true);
    else if (event.key === "Escape") end(false);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  field.addEventListener("blur", () => end(true));
  element.replaceWith(field);
  field.focus();
  field.select();
}
