// SillyTavern's chat: JSON lines. The first is a header with user_name, character_name, create_date and chat_metadata; each
// other one a message with name, is_user, is_system, send_date and mes. swipes holds the alternatives, swipe_id the one in mes.
//
// A message with is_system is one that SillyTavern shows and does not send; it is left out, and the count is told. A
// narrator's message (extra.type) is sent as the system's. A system prompt for this chat alone is chat_metadata.system_prompt.

import { isObject, requireText } from "./turns.js";

export const isSillyTavern = (value) => isObject(value) && ("chat_metadata" in value || "character_name" in value || "mes" in value);

export function toSillyTavern({ system, persona, turns, createdMs }) {
  const names = { user: "User", assistant: persona || "Assistant", system: "Narrator" };
  const header = {
    user_name: names.user,
    character_name: names.assistant,
    create_date: date(createdMs),
    chat_metadata: system ? { system_prompt: system } : {},
  };
  const messages = turns.map(({ role, alternatives, chosen, createdMs: sentMs }) => {
    const extra = role === "system" ? { type: "narrator" } : {};
    const message = {
      name: names[role],
      is_user: role === "user",
      is_system: false,
      send_date: date(sentMs),
      mes: alternatives[chosen],
      extra,
    };
    if (role === "assistant" || alternatives.length > 1) {
      message.swipe_id = chosen;
      message.swipes = alternatives;
      message.swipe_info = alternatives.map(() => ({ send_date: date(sentMs), extra: {} }));
    }
    return message;
  });
  return [header, ...messages].map((line) => JSON.stringify(line)).join("\n") + "\n";
}

/** `lines` are the lines' numbers; `notes` gets what a reader should know about what was left out. */
export function fromSillyTavern(values, lines, notes) {
  const turns = [];
  let hidden = 0;
  let header = {};
  values.forEach((value, index) => {
    const where = lines[index] === null ? "" : `Line ${lines[index]}: `;
    if (!isObject(value)) throw new Error(`${where}a message must be an object with "mes".`);
    if (index === 0 && !("mes" in value)) {
      header = value;
      return;
    }
    const mes = requireText(value.mes, `${where}mes`);
    if (value.is_user !== undefined && typeof value.is_user !== "boolean") throw new Error(`${where}is_user must be true or false.`);
    if (value.is_system === true) {
      hidden += 1;
      return;
    }
    const role = value.is_user ? "user" : value.extra?.type === "narrator" ? "system" : "assistant";
    turns.push({ role, ...swipes(value, mes, where), createdMs: readDate(value.send_date) });
  });
  if (!turns.length) throw new Error("The chat has no messages.");
  if (hidden) notes.push(`${hidden} hidden ${hidden === 1 ? "message was" : "messages were"} left out.`);
  const name = header.character_name;
  const system = header.chat_metadata?.system_prompt;
  return {
    title: undefined,
    system: typeof system === "string" ? system : "",
    persona: typeof name === "string" && name !== "unused" && name !== "Assistant" ? name : "",
    turns,
  };
}

function swipes(value, mes, where) {
  if (value.swipes === undefined || value.swipes === null || value.swipes.length === 0) return { alternatives: [mes], chosen: 0 };
  if (!Array.isArray(value.swipes)) throw new Error(`${where}swipes must be a list of texts.`);
  const alternatives = value.swipes.map((swipe, index) => requireText(swipe, `${where}swipes[${index}]`));
  const chosen = value.swipe_id ?? 0;
  if (!Number.isInteger(chosen) || chosen < 0 || chosen >= alternatives.length) {
    throw new Error(`${where}swipe_id is ${JSON.stringify(chosen)}, and there are ${alternatives.length} swipes.`);
  }
  alternatives[chosen] = mes; // what is shown counts: an edit may not have reached the list
  return { alternatives, chosen };
}

const date = (ms) => new Date(ms ?? 0).toISOString();

// Versions wrote milliseconds, ISO 8601, "June 19, 2023 4:13pm" and "2023-6-19 @04h 13m 22s 123ms".
function readDate(value) {
  if (typeof value === "number") return value;
  if (typeof value !== "string") return undefined;
  const parts = value.match(/^(\d+)-(\d+)-(\d+) ?@ ?(\d+)h ?(\d+)m ?(\d+)s/);
  if (parts) {
    const [year, month, ...rest] = parts.slice(1).map(Number);
    return new Date(year, month - 1, ...rest).getTime();
  }
  const ms = Date.parse(value.replace(/(\d)(am|pm)$/i, "$1 $2"));
  return Number.isNaN(ms) ? undefined : ms;
}
