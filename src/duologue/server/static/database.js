// Transactions on the browser's database, or, where it gives none (private windows, blocked storage), on memory.
//
// Both have `run(mode, work)`: `work` gets {get, all, of, put, delete}, and all that it does happens or nothing does.

const NAME = "duologue";
const VERSION = 1;
const KEYS = { dialogues: ["id"], messages: ["dialogue", "id"], personas: ["name"], values: ["name"] };
export const STORES = Object.keys(KEYS);

/** The browser's database. Rejects where there is none. */
export function openDatabase() {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open(NAME, VERSION); // throws, and so rejects, where storage is blocked
    opening.onupgradeneeded = () => {
      for (const [name, key] of Object.entries(KEYS)) {
        opening.result.createObjectStore(name, { keyPath: key.length === 1 ? key[0] : key });
      }
    };
    opening.onerror = () => reject(opening.error);
    opening.onblocked = () => reject(new Error("Another tab holds an older version of the storage; close it."));
    opening.onsuccess = () => resolve(new BrowserDatabase(opening.result));
  });
}

class BrowserDatabase {
  durable = true;
  #database;

  constructor(database) {
    this.#database = database;
    database.onversionchange = () => database.close(); // a newer page wants to upgrade it
  }

  run(mode, work) {
    return new Promise((resolve, reject) => {
      const transaction = this.#database.transaction(STORES, mode);
      let value;
      let failure;
      transaction.oncomplete = () => resolve(value);
      transaction.onabort = () => reject(failure ?? transaction.error ?? new Error("The storage gave up."));
      work(new BrowserTransaction(transaction)).then(
        (result) => (value = result),
        (error) => {
          failure = transaction.error ?? error;
          try {
            transaction.abort();
          } catch {
            reject(failure); // it has ended by itself
          }
        },
      );
    });
  }
}

class BrowserTransaction {
  #transaction;

  constructor(transaction) {
    this.#transaction = transaction;
  }

  get(store, key) {
    return this.#ask((at) => at.get(key), store);
  }

  all(store) {
    return this.#ask((at) => at.getAll(), store);
  }

  /** The messages of one dialogue. */
  of(dialogue) {
    // In the order of keys every list comes after every text.
    return this.#ask((at) => at.getAll(IDBKeyRange.bound([dialogue], [dialogue, []])), "messages");
  }

  put(store, value) {
    return this.#ask((at) => at.put(value), store);
  }

  delete(store, key) {
    return this.#ask((at) => at.delete(key), store);
  }

  #ask(request, store) {
    return new Promise((resolve, reject) => {
      const asked = request(this.#transaction.objectStore(store));
      asked.onsuccess = () => resolve(asked.result);
      asked.onerror = () => reject(asked.error);
    });
  }
}

/** The same in memory; it ends with the tab. */
export class MemoryDatabase {
  durable = false;
  #stores = Object.fromEntries(STORES.map((name) => [name, new Map()]));

  async run(mode, work) {
    const before = mode === "readonly" ? null : STORES.map((name) => [name, new Map(this.#stores[name])]);
    try {
      return await work(this.#transaction());
    } catch (error) {
      if (before) this.#stores = Object.fromEntries(before);
      throw error;
    }
  }

  #transaction() {
    const text = (key) => [key].flat().join("\n");
    return {
      get: async (store, key) => structuredClone(this.#stores[store].get(text(key))),
      all: async (store) => structuredClone([...this.#stores[store].values()]),
      of: async (id) => structuredClone([...this.#stores.messages.values()].filter(({ dialogue }) => dialogue === id)),
      put: async (store, value) => void this.#stores[store].set(KEYS[store].map((name) => value[name]).join("\n"), structuredClone(value)),
      delete: async (store, key) => void this.#stores[store].delete(text(key)),
    };
  }
}
