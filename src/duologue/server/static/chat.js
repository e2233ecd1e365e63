// One open dialogue: its record, its tree of messages, and what is done with them. Knows the store and the server, and nothing
// of the page; tells by events what has changed.

import { newId } from "./ids.js";
import { Reply } from "./reply.js";
import { Tree } from "./tree.js";

const TITLE_CHARACTERS = 60;
let lastMs = 0;

/** Milliseconds that only grow, so that messages of one tab keep their order. */
const nextMs = () => (lastMs = Math.max(Date.now(), lastMs + 1));

/** The record of a dialogue that has no messages yet. */
export function newRecord({ settings, system = "", persona = "", model = null, title = "New dialogue", named = false }) {
  const ms = nextMs();
  return { id: newId(), title, named, system, persona, model, settings: { ...settings }, chosen: {}, createdMs: ms, changedMs: ms };
}

/** The title that a dialogue gets from its first message. */
export function titleFrom(text) {
  const line = text.trim().split(/\s+/).join(" ");
  return line.length > TITLE_CHARACTERS ? line.slice(0, TITLE_CHARACTERS - 1).trimEnd() + "…" : line;
}

/**
 * Events: "change" (what is shown is another path, or another state), "token" (the running reply has grown), "done" (it has
 * ended), "record" (title, settings), "storage" (something was written, or could not be). `failure` is the error under the last message,
 * `storageFault` why the last write failed.
 */
export class Chat extends EventTarget {
  reply = null;
  failure = null;
  storageFault = null;
  #store;
  #unsaved = new Map(); // what could not be written yet, by message id
  #stored;
  #abandoned = false;

  constructor(store, record, messages = null) {
    super();
    this.#store = store;
    this.record = record;
    this.tree = new Tree(messages ?? [], record.chosen);
    this.#stored = messages !== null;
  }

  get id() {
    return this.record.id;
  }

  get path() {
    return this.tree.path();
  }

  /** Whether it is more than an empty form. */
  get stored() {
    return this.#stored;
  }

  ask(content, model) {
    const message = this.#message("user", content, this.path.at(-1)?.id ?? "");
    return this.#askWith(message, model);
  }

  /** A changed message as an alternative to it; a user's is answered at once. What followed stays with the old one. */
  async edit(message, content, model) {
    const changed = this.#message(message.role, content, message.parent);
    if (message.role === "user") return this.#askWith(changed, model);
    this.tree.choose(message);
    await this.#add(changed);
  }

  /** Answers the last message shown, or the one before `message` once more. */
  answer(model, message = null) {
    if (message) this.tree.choose(message);
    return this.#answer(message ? message.parent : (this.path.at(-1)?.id ?? ""), model);
  }

  /** Lets a reply that was cut go on. */
  async goOn(message, model) {
    if (this.reply) return;
    this.tree.choose(message);
    await this.#run(new Reply(message, model), { messages: this.tree.pathTo(message), continues: true });
  }

  /** Shows the alternative `by` places further; false at the end. */
  swipe(message, by) {
    const alternatives = this.tree.alternatives(message);
    const other = alternatives[alternatives.indexOf(message) + by];
    if (!other || this.reply) return false;
    this.tree.choose(other);
    this.failure = null;
    this.#changed();
    this.save({ chosen: this.tree.chosen });
    return true;
  }

  /** Removes a message and what follows it. Returns what `restoreMessages` needs. */
  async removeMessage(message) {
    if (this.reply) return [];
    const gone = this.tree.remove(message);
    this.failure = null;
    this.#changed();
    await this.#try(() => this.#store.removeMessages(this.id, gone.map(({ id }) => id)));
    return gone;
  }

  async restoreMessages(messages) {
    for (const message of messages) this.tree.add(message);
    this.tree.choose(messages[0]);
    this.#changed();
    await this.save({ chosen: this.tree.chosen }, messages);
  }

  /** A new dialogue that is this one up to `message`, as {record, messages}. */
  branch(message) {
    const { settings, system, persona, model, title } = this.record;
    const record = newRecord({ settings, system, persona, model, title: `${title} (branch)`, named: true });
    let parent = "";
    const messages = this.tree.pathTo(message).map((each) => {
      const copy = { ...each, dialogue: record.id, id: newId(), parent };
      parent = copy.id;
      return copy;
    });
    return { record, messages };
  }

  stop() {
    this.reply?.stop();
  }

  /** The dialogue is being deleted: its reply ends, and nothing of it is written any more. */
  abandon() {
    this.#abandoned = true;
    this.stop();
  }

  /** Changes fields of the record; of one that has no messages yet, in this tab only. */
  async update(fields) {
    Object.assign(this.record, fields);
    if (this.#stored) await this.save(fields);
    this.dispatchEvent(new Event("record"));
  }

  /** Takes over what another tab has written. What is shown here stays shown. */
  refresh({ record, messages }) {
    this.tree.pin();
    const chosen = { ...record.chosen, ...this.tree.chosen };
    const own = this.reply?.message;
    const tree = new Tree(messages.map((message) => (message.id === own?.id ? own : message)), chosen);
    // What is being answered, or could not be written, stays with all that it follows, even if the other tab has removed that.
    for (const kept of [own, ...this.#unsaved.values()]) {
      if (!kept) continue;
      for (const message of this.tree.pathTo(kept)) {
        if (tree.get(message.id)) continue;
        tree.add(message);
        if (message !== own) this.#unsaved.set(message.id, message);
      }
    }
    this.tree = tree;
    this.record = { ...record, chosen };
    this.dispatchEvent(new Event("record"));
    this.#changed();
  }

  /** Another tab has removed it: what is shown here is stored anew, all of it, if the dialogue goes on. */
  detach() {
    this.tree.pin();
    for (const message of this.tree.all()) this.#unsaved.set(message.id, message);
    this.#stored = false;
  }

  /** Writes `fields` and `messages`, and what could not be written before. */
  async save(fields = {}, messages = []) {
    if (this.#abandoned) return true;
    for (const message of messages) this.#unsaved.set(message.id, message);
    this.#stored = true;
    Object.assign(this.record, fields);
    const writing = [...this.#unsaved.values()];
    const saved = await this.#try(() => this.#store.save(this.record, fields, writing));
    if (saved) for (const message of writing) if (this.#unsaved.get(message.id) === message) this.#unsaved.delete(message.id);
    return saved;
  }

  async #try(write) {
    try {
      await write();
      this.storageFault = null;
    } catch (error) {
      this.storageFault = error;
    }
    this.dispatchEvent(new Event("storage"));
    return this.storageFault === null;
  }

  #message(role, content, parent) {
    return { dialogue: this.id, id: newId(), parent, role, content, createdMs: nextMs() };
  }

  async #askWith(message, model) {
    if (this.reply) return;
    const fields = this.record.named || message.parent ? {} : { title: titleFrom(message.content) };
    // At once: nothing else can be asked in between, and an answer does not wait for the storage.
    await Promise.all([this.#add(message, fields), this.#answer(message.id, model)]);
  }

  async #add(message, fields = {}) {
    const parent = this.tree.get(message.parent);
    if (parent) this.tree.choose(parent);
    this.tree.add(message);
    this.failure = null;
    this.#changed();
    await this.save({ ...fields, chosen: this.tree.chosen, changedMs: message.createdMs }, [message]);
    this.dispatchEvent(new Event("record"));
  }

  async #answer(parent, model) {
    if (this.reply) return;
    const message = { ...this.#message("assistant", "", parent), model };
    const messages = parent ? this.tree.pathTo(this.tree.get(parent)) : [];
    const before = this.path[messages.length];
    this.tree.add(message);
    await this.#run(new Reply(message, model), { messages }, before);
  }

  // `before` was shown in the reply's place and is again when nothing comes of the reply.
  async #run(reply, request, before = null) {
    this.reply = reply;
    this.failure = null;
    this.#changed();
    let savedMs = performance.now();
    const grown = () => {
      this.dispatchEvent(new Event("token"));
      // A tab that is closed keeps what it had.
      if (performance.now() - savedMs < 2000) return;
      savedMs = performance.now();
      this.save({ chosen: this.tree.chosen }, [{ ...reply.message, reason: "stopped" }]);
    };
    const error = await reply.run(this.record, request, grown);
    this.reply = null;
    const { message } = reply;
    if (!message.content) {
      this.tree.remove(message);
      if (before) this.tree.choose(before);
    }
    this.failure = error;
    this.#changed();
    if (message.content) await this.save({ chosen: this.tree.chosen, changedMs: nextMs() }, [{ ...message }]);
    this.dispatchEvent(new Event("done"));
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
}
