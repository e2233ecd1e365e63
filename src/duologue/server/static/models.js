// The server's models, and whether it can be reached and used.

import { withKey } from "./access.js";

const RETRY_MS = 2000;

/** Events: "change". `state` is "connecting", "ready", "unreachable" or "locked" (an API key is needed). */
export class Models extends EventTarget {
  state = "connecting";
  entries = [];
  keyRefused = false;

  async load() {
    try {
      const response = await fetch("/v1/models", { headers: withKey() });
      if (response.status === 401) return this.lock();
      if (!response.ok) throw new Error(`status ${response.status}`);
      this.entries = (await response.json()).data;
      this.#become("ready");
    } catch {
      this.#become("unreachable");
      setTimeout(() => this.load(), RETRY_MS);
    }
  }

  /** The server has asked for a key. */
  lock() {
    this.keyRefused = Boolean(withKey().authorization);
    this.#become("locked");
  }

  /** The model that a dialogue uses: its own where the server has it, else the server's first. */
  idFor(record) {
    return (this.entries.find(({ id }) => id === record.model) ?? this.entries[0])?.id ?? null;
  }

  contextTokens(id) {
    return this.entries.find((entry) => entry.id === id)?.context_tokens ?? null;
  }

  /** Asks the server to drop what it has cached of a dialogue; that it may not answer is no loss. */
  forget(dialogue) {
    fetch(`/v1/cache/${encodeURIComponent(dialogue)}`, { method: "DELETE", headers: withKey() }).catch(() => {});
  }

  #become(state) {
    this.state = state;
    this.dispatchEvent(new Event("change"));
  }
}
