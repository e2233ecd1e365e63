// The messages of one dialogue as a tree. Every message names its parent; alternatives are messages of one parent; what is
// shown and sent is one path from the root. Nothing is ever changed to make an alternative, so that histories stay
// what they were and two tabs that add to one dialogue only make branches.

const ROOT = "";

export class Tree {
  #messages = new Map();
  #children = new Map(); // parent's id to its children, oldest first
  #chosen;

  /** `chosen` maps a parent's id ("" for the beginning) to the child that is shown; without it the newest is. */
  constructor(messages = [], chosen = {}) {
    this.#chosen = { ...chosen };
    for (const message of [...messages].sort(byAge)) this.#insert(message);
  }

  get chosen() {
    return { ...this.#chosen };
  }

  get size() {
    return this.#messages.size;
  }

  all() {
    return [...this.#messages.values()];
  }

  get(id) {
    return this.#messages.get(id);
  }

  /** Adds a message and shows it. Its parent has to be there. */
  add(message) {
    const parent = message.parent ?? ROOT;
    if (parent !== ROOT && !this.#messages.has(parent)) throw new Error(`Message ${message.id} has no parent here.`);
    this.#insert(message);
    if (this.#children.get(parent).length > 1 || parent in this.#chosen) this.#chosen[parent] = message.id;
  }

  /** The messages that are shown, first to last. */
  path() {
    const path = [];
    for (let next = this.#next(ROOT); next; next = this.#next(next.id)) path.push(next);
    return path;
  }

  /** The messages from the beginning to this one, whatever is shown. */
  pathTo(message) {
    const path = [];
    for (let at = message; at; at = this.#messages.get(at.parent)) path.unshift(at);
    return path;
  }

  /** A message and its alternatives of the same role, oldest first. */
  alternatives(message) {
    const children = this.#children.get(message.parent ?? ROOT) ?? [];
    return children.filter(({ role }) => role === message.role);
  }

  /** Shows a message. */
  choose(message) {
    for (const step of this.pathTo(message)) this.#chosen[step.parent ?? ROOT] = step.id;
  }

  /** Makes explicit what is shown now, so that messages of other tabs appear as alternatives and do not replace it. */
  pin() {
    for (const message of this.path()) this.#chosen[message.parent ?? ROOT] = message.id;
  }

  /** A message and all that follows it, in every branch. */
  subtree(message) {
    const found = [message];
    for (const each of found) found.push(...(this.#children.get(each.id) ?? []));
    return found;
  }

  /** Takes a message and all that follows it away; returns them. */
  remove(message) {
    const gone = this.subtree(message);
    const siblings = this.#children.get(message.parent ?? ROOT);
    siblings.splice(siblings.indexOf(message), 1);
    for (const { id } of gone) {
      this.#messages.delete(id);
      this.#children.delete(id);
      delete this.#chosen[id];
    }
    if (this.#chosen[message.parent ?? ROOT] === message.id) delete this.#chosen[message.parent ?? ROOT];
    return gone;
  }

  #next(parent) {
    const children = this.#children.get(parent) ?? [];
    return children.find(({ id }) => id === this.#chosen[parent]) ?? children.at(-1);
  }

  #insert(message) {
    const parent = message.parent ?? ROOT;
    this.#messages.set(message.id, message);
    if (this.#children.has(parent)) this.#children.get(parent).push(message);
    else this.#children.set(parent, [message]);
  }
}

const byAge = (a, b) => a.createdMs - b.createdMs || (a.id < b.id ? -1 : 1);
