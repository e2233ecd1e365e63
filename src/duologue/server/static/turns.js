// What the formats share: checks with the field's name, and messages as turns with one alternative each.

export const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** The text, or an error that names where it should have been. */
export function requireText(value, where) {
  if (typeof value === "string") return value;
  throw new Error(`${where} ${value === undefined ? "is missing" : "must be a text"}.`);
}

/** Messages {role, content} as a dialogue; system messages at the beginning become its system prompt. */
export function plainTurns(messages, field) {
  let begin = 0;
  while (messages[begin]?.role === "system") begin += 1;
  if (begin === messages.length) throw new Error(`${field} holds no message of a user or an assistant.`);
  return {
    title: undefined,
    system: messages.slice(0, begin).map(({ content }) => content).join("\n\n"),
    persona: "",
    turns: messages.slice(begin).map(({ role, content }) => ({ role, alternatives: [content], chosen: 0 })),
  };
}
