// The list of dialogues: by day, or what a search has found.

import { at, editInPlace, iconButton, make } from "./dom.js";
import { search } from "./search.js";

const PAGE = 200; // entries that are made at once
const DAY_MS = 24 * 3600 * 1000;

export class Sidebar {
  #list = at("dialogues");
  #none = at("no-dialogues");
  #field = at("search");
  #store;
  #do;
  #records = [];
  #found = null; // results while there is a query
  #searching = null;
  #currentId = null;
  #busy = new Set();
  #shown = PAGE;

  /** `do_` has {open, rename, remove}. */
  constructor(store, do_) {
    this.#store = store;
    this.#do = do_;
    let timer = 0;
    this.#field.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.#search(), 120);
    });
    this.#field.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.#field.value) {
        event.stopPropagation();
        this.clearSearch();
      } else if (event.key === "ArrowDown" || event.key === "Enter") {
        const first = this.#links()[0];
        if (event.key === "Enter") first?.click();
        else first?.focus();
      } else return;
      event.preventDefault();
    });
    this.#list.addEventListener("keydown", (event) => this.#onKey(event));
  }

  /** Shows the stored dialogues; `busy` has the ids of those that are being answered. */
  show(records, currentId, busy) {
    this.#records = records;
    this.#currentId = currentId;
    this.#busy = busy;
    if (this.#field.value.trim()) this.#search();
    else this.#render();
  }

  focusSearch() {
    this.#field.focus();
    this.#field.select();
  }

  clearSearch() {
    this.#field.value = "";
    this.#search();
  }

  async #search() {
    this.#searching?.abort();
    const query = this.#field.value.trim();
    if (!query) {
      this.#found = null;
      return this.#render();
    }
    const controller = (this.#searching = new AbortController());
    const found = [];
    for await (const result of search(this.#store, this.#records, query, controller.signal)) {
      found.push(result);
      if (found.length >= PAGE) break;
    }
    if (controller.signal.aborted) return;
    this.#found = found;
    this.#render();
  }

  #render() {
    if (this.#list.querySelector(".in-place")) return; // a name is being written; afterwards
    const focusedId = this.#list.contains(document.activeElement) ? document.activeElement.closest("li")?.dataset.id : null;
    const nodes = [];
    if (this.#found) {
      for (const { record, place } of this.#found) nodes.push(this.#entry(record, place));
    } else {
      let group = null;
      for (const record of this.#records.slice(0, this.#shown)) {
        const name = groupOf(record.changedMs);
        if (name !== group) nodes.push(make("li", { className: "group", role: "presentation" }, make("h3", { textContent: name })));
        group = name;
        nodes.push(this.#entry(record, null));
      }
      if (this.#records.length > this.#shown) nodes.push(this.#more());
    }
    this.#list.replaceChildren(...nodes);
    this.#none.hidden = nodes.length > 0;
    this.#none.textContent = this.#found ? "Nothing found." : "No dialogues yet.";
    at("search-status").textContent = this.#found ? `${this.#found.length} found` : "";
    if (focusedId) this.#list.querySelector(`[data-id="${CSS.escape(focusedId)}"] a`)?.focus();
  }

  #entry(record, place) {
    const link = make("a", { href: `#${record.id}`, title: record.title }, make("span", { className: "name", textContent: record.title }));
    if (place) {
      link.append(make("span", { className: "place" }, place.before, make("mark", { textContent: place.match }), place.after));
    }
    if (this.#busy.has(record.id)) link.append(make("span", { className: "busy", role: "img", "aria-label": "being answered" }));
    if (record.id === this.#currentId) link.setAttribute("aria-current", "page");
    const rename = iconButton("edit", `Rename ${record.title}`, { tabIndex: -1 });
    rename.addEventListener("click", () => this.#rename(record, link));
    const remove = iconButton("delete", `Delete ${record.title}`, { tabIndex: -1 });
    remove.addEventListener("click", () => this.#do.remove(record));
    const entry = make("li", {}, link, rename, remove);
    entry.dataset.id = record.id;
    // The buttons are reached from the entry that has the focus; elsewhere they would be hundreds of stops.
    entry.addEventListener("focusin", () => (rename.tabIndex = remove.tabIndex = 0));
    entry.addEventListener("focusout", () => (rename.tabIndex = remove.tabIndex = -1));
    link.addEventListener("click", () => this.#do.open(record.id));
    return entry;
  }

  #more() {
    const button = make("button", { type: "button", className: "quiet", textContent: `Show ${PAGE} more` });
    button.addEventListener("click", () => {
      this.#shown += PAGE;
      this.#render();
    });
    return make("li", { className: "more" }, button);
  }

  #rename(record, link) {
    editInPlace(link, record.title, "Name of the dialogue", (title) => this.#do.rename(record, title), () => this.#render());
  }

  #links() {
    return [...this.#list.querySelectorAll("a")];
  }

  #onKey(event) {
    const entry = event.target.closest("li");
    const link = entry?.querySelector("a");
    if (!link || event.target.matches("input")) return;
    const record = (this.#found?.map((each) => each.record) ?? this.#records).find(({ id }) => id === entry.dataset.id);
    const links = this.#links();
    const index = links.indexOf(link);
    const acts = {
      ArrowDown: () => links[index + 1]?.focus(),
      ArrowUp: () => (links[index - 1] ?? this.#field).focus(),
      F2: () => this.#rename(record, link),
      Delete: () => {
        (links[index + 1] ?? links[index - 1] ?? this.#field).focus();
        this.#do.remove(record);
      },
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    acts[event.key]();
  }
}

function groupOf(ms) {
  const today = new Date().setHours(0, 0, 0, 0);
  if (ms >= today) return "Today";
  if (ms >= today - DAY_MS) return "Yesterday";
  if (ms >= today - 7 * DAY_MS) return "Last 7 days";
  return new Date(ms).toLocaleDateString("en", { month: "long", year: "numeric" });
}
