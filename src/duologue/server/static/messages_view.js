// The open dialogue as a list. A change touches only the messages that it concerns; a token only the last one.

import { at, icon, make } from "./dom.js";
import { MessageItem } from "./message_item.js";

const NEAR_END_PX = 80;

export class MessagesView {
  #list = at("dialogue");
  #scroll = at("scroll");
  #toEnd = at("to-end");
  #do;
  #items = new Map(); // by message id, those that are shown
  #order = [];
  #chat = null;
  #current = null;
  #tail = null;
  #painting = false;

  constructor(do_) {
    this.#do = do_;
    this.#list.addEventListener("keydown", (event) => this.#onKey(event));
    this.#list.addEventListener("focusin", (event) => {
      const item = this.#itemOf(event.target);
      if (item) this.#setCurrent(item);
    });
    this.#list.addEventListener("click", (event) => {
      const item = this.#itemOf(event.target);
      if (item && !event.target.closest("button, textarea") && getSelection().isCollapsed) item.element.focus({ preventScroll: true });
    });
    this.#scroll.addEventListener("scroll", () => this.#showToEnd(), { passive: true });
    this.#toEnd.addEventListener("click", () => this.scrollToEnd());
  }

  /** Shows `chat` as it is now; {persona, manyModels} are for the messages' heads. */
  show(chat, place) {
    const path = chat.path;
    const other = chat !== this.#chat;
    if (other) this.#items.clear();
    this.#chat = chat;
    const atEnd = other || this.#isAtEnd();
    const items = path.map((message) => {
      const known = this.#items.get(message.id);
      return known?.message === message ? known : new MessageItem(message, this.#do);
    });
    this.#items = new Map(items.map((item) => [item.message.id, item]));
    const last = path.at(-1);
    for (const item of items) {
      const { message } = item;
      const running = chat.reply?.message === message ? chat.reply : null;
      const alternatives = chat.tree.alternatives(message);
      item.update({ alternatives, last: message === last, running, busy: chat.reply !== null, ...place });
    }
    this.#replace(items.map(({ element }) => element));
    this.#order = items;
    if (!items.includes(this.#current)) this.#current = null;
    this.#setCurrent(this.#current ?? items.at(-1) ?? null);
    this.#showTail(chat, last);
    if (atEnd) this.scrollToEnd();
    this.#showToEnd();
  }

  /** Shows what the running reply has got since; several tokens may share a frame. */
  grow() {
    if (this.#painting) return;
    this.#painting = true;
    requestAnimationFrame(() => {
      this.#painting = false;
      const reply = this.#chat?.reply;
      if (!reply) return;
      const atEnd = this.#isAtEnd();
      this.#items.get(reply.message.id)?.paint(reply);
      if (atEnd) this.scrollToEnd();
    });
  }

  scrollToEnd() {
    this.#scroll.scrollTop = this.#scroll.scrollHeight;
  }

  focusLast() {
    this.#order.at(-1)?.element.focus();
  }

  /** The item of a message id. */
  item(id) {
    return this.#items.get(id);
  }

  // Only the list's end differs as a rule: what is the same stays untouched.
  #replace(elements) {
    let place = this.#list.firstChild;
    for (const element of elements) {
      if (place === element) place = place.nextSibling;
      else this.#list.insertBefore(element, place);
    }
    while (place) {
      const next = place.nextSibling;
      place.remove();
      place = next;
    }
  }

  #showTail(chat, last) {
    this.#tail?.remove();
    this.#tail = null;
    const unanswered = last?.role === "user" && !chat.reply;
    if (!chat.failure && !unanswered) return;
    const retry = make("button", { type: "button", className: "quiet" }, icon("again"), chat.failure ? "Try again" : "Get a reply");
    retry.addEventListener("click", () => (last.role === "assistant" ? this.#do.answer(last) : this.#do.answer(null)));
    this.#tail = make("li", { className: "tail" });
    if (chat.failure) {
      const words = make("span", { textContent: failureText(chat.failure) });
      this.#tail.append(make("div", { className: "failure", role: "alert" }, words, retry));
    } else {
      this.#tail.append(retry);
    }
    this.#list.append(this.#tail);
  }

  #onKey(event) {
    const item = this.#itemOf(event.target);
    if (!item || event.target.closest("textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const index = this.#order.indexOf(item);
    const { message } = item;
    const idle = this.#chat.reply === null;
    const acts = {
      ArrowUp: () => this.#order[index - 1]?.element.focus(),
      ArrowDown: () => (this.#order[index + 1]?.element ?? at("text")).focus(),
      Home: () => this.#order[0].element.focus(),
      End: () => this.focusLast(),
      ArrowLeft: () => this.#do.swipe(message, -1),
      ArrowRight: () => this.#do.swipe(message, 1),
      e: () => idle && item.edit(),
      r: () => idle && message.role === "assistant" && this.#do.answer(message),
      c: () => this.#do.copy(message),
      b: () => this.#do.branch(message),
      Delete: () => idle && this.#do.remove(message),
    };
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  #itemOf(element) {
    const found = element.closest("li.message");
    return this.#order.find((item) => item.element === found);
  }

  #setCurrent(item) {
    if (this.#current !== item) this.#current?.setCurrent(false);
    this.#current = item;
    item?.setCurrent(true);
  }

  #isAtEnd() {
    return this.#scroll.scrollHeight - this.#scroll.scrollTop - this.#scroll.clientHeight < NEAR_END_PX;
  }

  #showToEnd() {
    this.#toEnd.hidden = this.#isAtEnd();
  }
}

function failureText(error) {
  if (error instanceof TypeError) return "The server cannot be reached. Is it still running?";
  if (error.code === "context_length_exceeded") return `${error.message} A new dialogue starts with an empty context.`;
  return error.message;
}
