// Between what is stored and what the file formats exchange.

import { newRecord, titleFrom } from "./chat.js";
import { newId } from "./ids.js";

/** What is shown of a dialogue, with each message's alternatives. */
export function toExchange({ title, system, persona, createdMs }, tree) {
  const turns = tree.path().map((message) => {
    const alternatives = tree.alternatives(message);
    return {
      role: message.role,
      alternatives: alternatives.map(({ content }) => content),
      chosen: alternatives.indexOf(message),
      createdMs: message.createdMs,
    };
  });
  return { title, system, persona, createdMs, turns };
}

/** A new dialogue as {record, messages}. */
export function fromExchange({ title, system, persona, turns }, settings) {
  const first = turns.find(({ role }) => role === "user");
  const record = newRecord({ settings, system, persona, title: titleFrom(title || first?.alternatives[first.chosen] || "Imported"), named: true });
  let parent = "";
  let lastMs = 0;
  const messages = [];
  for (const { role, alternatives, chosen, createdMs } of turns) {
    const siblings = alternatives.map((content) => {
      // Alternatives keep their order, and a reply is younger than what it answers.
      lastMs = Math.max(createdMs ?? record.createdMs, lastMs + 1);
      return { dialogue: record.id, id: newId(), parent, role, content, createdMs: lastMs };
    });
    if (siblings.length > 1) record.chosen[parent] = siblings[chosen].id;
    messages.push(...siblings);
    parent = siblings[chosen].id;
  }
  return { record, messages };
}
