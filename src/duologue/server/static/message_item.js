// One message as a list item: its text, its figures, and what can be done with it.

import { icon, iconButton, make } from "./dom.js";
import { render } from "./render.js";
import { describe, promptBar } from "./tokens.js";

const NAMES = { user: "You", system: "Note" };
const LONG_ANNOUNCEMENT = 2000; // characters

/** `do_` has {swipe, edit, answer, goOn, copy, branch, remove}; each gets the message. */
export class MessageItem {
  #do;
  #state = "";
  #painted = null; // the text that is shown
  #body = make("div", { className: "body" });
  #figures = make("div", { className: "figures" });
  #tools = make("div", { className: "tools", role: "toolbar", "aria-label": "Message actions" });
  #bar = null;
  #who = make("h3", { className: "who" });

  constructor(message, do_) {
    this.message = message;
    this.#do = do_;
    this.element = make("li", { className: `message ${message.role}`, tabIndex: -1 }, this.#who, this.#body, this.#figures, this.#tools);
  }

  /** Shows the message in its place: {alternatives, last, running, busy, persona, model}. */
  update(place) {
    const { alternatives, last, running, busy, persona, manyModels } = place;
    const name = NAMES[this.message.role] ?? (persona || "Reply");
    const number = alternatives.indexOf(this.message) + 1;
    this.paint(running);
    const state = [name, number, alternatives.length, last, Boolean(running), busy, manyModels, this.message.reason].join();
    if (state === this.#state) return;
    this.#state = state;
    this.#who.textContent = name;
    this.#who.classList.toggle("quiet-name", this.message.role !== "assistant" || !persona);
    this.element.classList.toggle("last", last);
    if (running) this.element.setAttribute("aria-busy", "true");
    else this.element.removeAttribute("aria-busy");
    this.#describe(manyModels, running);
    this.#fillTools(number, alternatives.length, last, busy);
  }

  /** Shows what the message says now; `running` is its reply while it is written. */
  paint(running = null) {
    const { content, role } = this.message;
    this.element.classList.toggle("waiting", Boolean(running) && !content);
    this.element.classList.toggle("streaming", Boolean(running) && content !== "");
    if (running) this.#figures.textContent = describe(this.message);
    if (content === this.#painted) return;
    this.#painted = content;
    if (role === "assistant") render(this.#body, content);
    else this.#body.textContent = content;
  }

  /** One tab stop in the whole list: this message and its buttons, or none of it. */
  setCurrent(current) {
    this.element.tabIndex = current ? 0 : -1;
    this.element.classList.toggle("current", current);
    for (const button of this.#tools.querySelectorAll("button")) button.tabIndex = current ? 0 : -1;
  }

  /** Puts a field in the text's place. */
  edit() {
    if (this.element.classList.contains("editing")) return;
    const asks = this.message.role === "user";
    const field = make("textarea", { className: "edit", value: this.message.content, "aria-label": "Change the message" });
    const cancel = make("button", { type: "button", className: "quiet", textContent: "Cancel" });
    const save = make("button", { type: "submit", className: "strong", textContent: asks ? "Send" : "Keep" });
    const hint = make("span", { className: "hint", textContent: "As an alternative; the message stays as it is." });
    const form = make("form", { className: "editor" }, field, make("div", { className: "row" }, hint, cancel, save));
    const close = () => {
      form.replaceWith(this.#body);
      this.element.classList.remove("editing");
      this.element.focus();
    };
    const submit = () => {
      const text = field.value.trim() ? field.value : "";
      close();
      if (text && text !== this.message.content) this.#do.edit(this.message, text);
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      submit();
    });
    cancel.addEventListener("click", close);
    form.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Escape") close();
      else if (event.key === "Enter" && event.target === field && !event.shiftKey && !event.isComposing) submit();
      else return;
      event.preventDefault();
    });
    this.#body.replaceWith(form);
    this.element.classList.add("editing");
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }

  /** What a screen reader is told when the reply has ended. */
  get announcement() {
    const { content } = this.message;
    return content.length > LONG_ANNOUNCEMENT ? `${content.slice(0, LONG_ANNOUNCEMENT)}… The reply is longer.` : content;
  }

  #describe(manyModels, running) {
    this.#figures.textContent = describe(this.message, manyModels);
    this.#bar?.remove();
    this.#bar = null;
    if (running || !this.message.figures || this.message.figures.promptTokens === null) return;
    this.#bar = promptBar(this.message.figures);
    this.#figures.after(this.#bar);
  }

  #fillTools(number, count, last, busy) {
    const { role, reason } = this.message;
    const hadFocus = this.#tools.contains(document.activeElement) ? document.activeElement.dataset.act : null;
    this.#tools.replaceChildren();
    const button = (name, label, act, run, disabled = false) => {
      const made = iconButton(name, label, { disabled });
      made.dataset.act = act;
      made.addEventListener("click", run);
      this.#tools.append(made);
      return made;
    };
    const isLastReply = role === "assistant" && last;
    if (count > 1 || isLastReply) {
      const group = make("span", { className: "swipes" });
      const left = button("left", "Earlier alternative (←)", "left", () => this.#do.swipe(this.message, -1), number === 1 || busy);
      const end = number === count;
      const label = end && isLastReply ? "New alternative (→)" : "Later alternative (→)";
      const right = button("right", label, "right", () => this.#do.swipe(this.message, 1), (end && !isLastReply) || busy);
      const text = make("span", { className: "count", textContent: `${number}/${count}`, "aria-label": `Alternative ${number} of ${count}` });
      group.append(left, text, right);
      this.#tools.append(group);
    }
    if (isLastReply && (reason === "stopped" || reason === "length") && !busy) {
      const go = make("button", { type: "button", className: "tool" }, icon("go-on"), "Continue");
      go.addEventListener("click", () => this.#do.goOn(this.message));
      this.#tools.append(go);
    }
    if (role === "assistant") button("again", "Write another reply (r)", "again", () => this.#do.answer(this.message), busy);
    button("edit", "Edit (e)", "edit", () => this.edit(), busy);
    button("copy", "Copy (c)", "copy", () => this.#do.copy(this.message));
    button("branch", "New dialogue from here (b)", "branch", () => this.#do.branch(this.message));
    button("delete", "Delete from here (Del)", "delete", () => this.#do.remove(this.message), busy);
    this.setCurrent(this.element.tabIndex === 0);
    if (hadFocus) (this.#tools.querySelector(`[data-act=${hadFocus}]:enabled`) ?? this.element).focus();
  }
}
