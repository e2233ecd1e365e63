// OpenAI's messages: {"messages": [{"role", "content"}...]}, or the bare list. The same JSON is a request's `messages`.

import { isObject, plainTurns, requireText } from "./turns.js";

const ROLES = { system: "system", developer: "system", user: "user", assistant: "assistant" };

export const isOpenAi = (value) =>
  (isObject(value) && Array.isArray(value.messages)) || (Array.isArray(value) && isObject(value[0]) && "role" in value[0]);

export function toOpenAi({ system, turns }) {
  const head = system ? [{ role: "system", content: system }] : [];
  const messages = turns.map(({ role, alternatives, chosen }) => ({ role, content: alternatives[chosen] }));
  return JSON.stringify({ messages: [...head, ...messages] }, null, 2) + "\n";
}

export function fromOpenAi(value) {
  const messages = Array.isArray(value) ? value : value.messages;
  return plainTurns(
    messages.map((message, index) => {
      const where = `messages[${index}]`;
      if (!isObject(message)) throw new Error(`${where} must be an object with "role" and "content".`);
      const role = ROLES[message.role];
      if (!role) throw new Error(`${where}.role is ${JSON.stringify(message.role) ?? "missing"}; it must be system, developer, user or assistant.`);
      return { role, content: contentText(message.content, `${where}.content`) };
    }),
    "messages",
  );
}

function contentText(content, where) {
  if (!Array.isArray(content)) return requireText(content, where);
  return content
    .map((part, index) => {
      if (part?.type !== "text") throw new Error(`${where}[${index}].type is ${JSON.stringify(part?.type) ?? "missing"}; only text can be kept.`);
      return requireText(part.text, `${where}[${index}].text`);
    })
    .join("");
}
