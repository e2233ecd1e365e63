// What is stored, and how tabs share it. A message is a record of its own and is added, so two tabs that go on with one
// dialogue both keep what they wrote; of a dialogue's record only the fields that changed are written.

import { MemoryDatabase, openDatabase } from "./database.js";

export class Store extends EventTarget {
  #database;
  #channel = null;

  constructor(database) {
    super();
    this.#database = database;
    if (!database.durable || typeof BroadcastChannel === "undefined") return;
    this.#channel = new BroadcastChannel("duologue");
    // "change" tells what another tab has done; `detail` is the dialogue's id, or null for all else.
    this.#channel.onmessage = ({ data }) => this.dispatchEvent(new CustomEvent("change", { detail: data }));
  }

  /** Whether it outlives the tab. */
  get durable() {
    return this.#database.durable;
  }

  /** All dialogues' records, the last changed first. */
  async dialogues() {
    const found = await this.#database.run("readonly", (at) => at.all("dialogues"));
    return found.sort((a, b) => b.changedMs - a.changedMs);
  }

  /** {record, messages} of a dialogue, or null. */
  load(id) {
    return this.#database.run("readonly", async (at) => {
      const record = await at.get("dialogues", id);
      return record ? { record, messages: await at.of(id) } : null;
    });
  }

  /** Writes messages, and `fields` of their dialogue; a dialogue that is not there is made of `record`. */
  async save(record, fields = {}, messages = []) {
    await this.#database.run("readwrite", async (at) => {
      const stored = await at.get("dialogues", record.id);
      const chosen = { ...stored?.chosen, ...fields.chosen };
      await at.put("dialogues", { ...record, ...stored, ...fields, chosen });
      for (const message of messages) await at.put("messages", message);
    });
    this.#tell(record.id);
  }

  /** Removes a dialogue with its messages; returns what was there. */
  async remove(id) {
    const gone = await this.#database.run("readwrite", async (at) => {
      const record = await at.get("dialogues", id);
      const messages = await at.of(id);
      await at.delete("dialogues", id);
      for (const message of messages) await at.delete("messages", [id, message.id]);
      return { record, messages };
    });
    this.#tell(id);
    return gone;
  }

  async removeMessages(dialogue, ids) {
    await this.#database.run("readwrite", async (at) => {
      for (const id of ids) await at.delete("messages", [dialogue, id]);
    });
    this.#tell(dialogue);
  }

  /** Adds the records that are not there yet; what is there stays as it is. */
  async add({ dialogues = [], messages = [], personas = [] }) {
    await this.#database.run("readwrite", async (at) => {
      for (const each of dialogues) if (!(await at.get("dialogues", each.id))) await at.put("dialogues", each);
      for (const each of messages) if (!(await at.get("messages", [each.dialogue, each.id]))) await at.put("messages", each);
      for (const each of personas) if (!(await at.get("personas", each.name))) await at.put("personas", each);
    });
    this.#tell(null);
  }

  async everything() {
    return this.#database.run("readonly", async (at) => ({
      dialogues: await at.all("dialogues"),
      messages: await at.all("messages"),
      personas: await at.all("personas"),
    }));
  }

  async personas() {
    const found = await this.#database.run("readonly", (at) => at.all("personas"));
    return found.sort((a, b) => a.name.localeCompare(b.name));
  }

  async savePersona(persona) {
    await this.#database.run("readwrite", (at) => at.put("personas", persona));
    this.#tell(null);
  }

  async removePersona(name) {
    await this.#database.run("readwrite", (at) => at.delete("personas", name));
    this.#tell(null);
  }

  /** A single value by name; `otherwise` when there is none. */
  async value(name, otherwise) {
    return (await this.#database.run("readonly", (at) => at.get("values", name)))?.value ?? otherwise;
  }

  setValue(name, value) {
    return this.#database.run("readwrite", (at) => at.put("values", { name, value }));
  }

  #tell(id) {
    this.#channel?.postMessage(id);
  }
}

/** The browser's storage, or memory where there is none. */
export async function openStore() {
  try {
    return new Store(await openDatabase());
  } catch {
    return new Store(new MemoryDatabase());
  }
}
