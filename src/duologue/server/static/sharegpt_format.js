// ShareGPT: [{"id", "conversations": [{"from": "system" | "human" | "gpt", "value"}...]}...], or one such object.

import { isObject, plainTurns, requireText } from "./turns.js";

const ROLES = { system: "system", human: "user", user: "user", prompter: "user", gpt: "assistant", assistant: "assistant", chatgpt: "assistant" };
const NAMES = { system: "system", user: "human", assistant: "gpt" };

export const isShareGpt = (value) =>
  (isObject(value) && Array.isArray(value.conversations)) || (Array.isArray(value) && isObject(value[0]) && "from" in value[0]);

export function toShareGpt({ title, system, turns }) {
  const head = system ? [{ from: "system", value: system }] : [];
  const conversations = turns.map(({ role, alternatives, chosen }) => ({ from: NAMES[role], value: alternatives[chosen] }));
  return JSON.stringify([{ id: title, conversations: [...head, ...conversations] }], null, 2) + "\n";
}

export function fromShareGpt(value) {
  const conversations = Array.isArray(value) ? value : value.conversations;
  const dialogue = plainTurns(
    conversations.map((turn, index) => {
      const where = `conversations[${index}]`;
      if (!isObject(turn)) throw new Error(`${where} must be an object with "from" and "value".`);
      const role = ROLES[turn.from];
      if (!role) throw new Error(`${where}.from is ${JSON.stringify(turn.from) ?? "missing"}; it must be system, human or gpt.`);
      return { role, content: requireText(turn.value, `${where}.value`) };
    }),
    "conversations",
  );
  if (typeof value.id === "string" && value.id.trim()) dialogue.title = value.id;
  return dialogue;
}
