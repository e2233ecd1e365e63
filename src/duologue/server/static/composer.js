// The field where messages are written, with one draft per dialogue.

import { at } from "./dom.js";

export class Composer {
  #text = at("text");
  #send = at("send");
  #stop = at("stop");
  #drafts = new Map();
  #id = null;
  #ready = false;
  #running = false;

  /** `do_` has {ask(text), stop(), swipe(by), focusMessages()}. */
  constructor(do_) {
    at("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit(do_);
    });
    this.#stop.addEventListener("click", () => do_.stop());
    this.#text.addEventListener("input", () => this.#update());
    this.#text.addEventListener("keydown", (event) => {
      // While an input method composes a word, Enter only accepts it.
      if (event.isComposing || event.shiftKey || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Enter") this.#submit(do_);
      else if (this.#text.value !== "") return;
      else if (event.key === "ArrowUp") do_.focusMessages();
      else if (event.key === "ArrowLeft") do_.swipe(-1);
      else if (event.key === "ArrowRight") do_.swipe(1);
      else return;
      event.preventDefault();
    });
  }

  /** Shows the draft of a dialogue; `ready` says whether a message can be sent, `running` whether a reply is being written. */
  show(id, ready, running) {
    if (id !== this.#id) {
      if (this.#id) this.#drafts.set(this.#id, this.#text.value);
      this.#text.value = this.#drafts.get(id) ?? "";
      this.#id = id;
    }
    this.#ready = ready;
    this.#running = running;
    this.#update();
  }

  focus() {
    this.#text.focus();
  }

  #submit(do_) {
    const question = this.#text.value.trim();
    if (!question || !this.#ready || this.#running) return;
    this.#text.value = "";
    do_.ask(question);
    this.#update();
  }

  #update() {
    const hadFocus = document.activeElement === this.#send || document.activeElement === this.#stop;
    this.#send.hidden = this.#running;
    this.#stop.hidden = !this.#running;
    this.#send.disabled = !this.#ready || !this.#text.value.trim();
    if (hadFocus && document.activeElement === document.body) this.#text.focus();
  }
}
