// All of what the page stores in one file, every branch included: {"duologue_backup": 1, dialogues, messages, personas}.

import { isObject, requireText } from "./turns.js";

const VERSION = 1;
const ROLES = ["system", "user", "assistant"];

export const isBackup = (value) => isObject(value) && "duologue_backup" in value;

export const toBackup = ({ dialogues, messages, personas }) =>
  JSON.stringify({ duologue_backup: VERSION, dialogues, messages, personas }) + "\n";

/** The records of a backup, checked. Throws an error that names the field. */
export function fromBackup(value) {
  if (value.duologue_backup !== VERSION) {
    throw new Error(`duologue_backup is ${JSON.stringify(value.duologue_backup)}; this page reads version ${VERSION}.`);
  }
  for (const name of ["dialogues", "messages", "personas"]) {
    if (!Array.isArray(value[name])) throw new Error(`${name} must be a list.`);
  }
  const dialogues = value.dialogues.map((each, index) => {
    const where = `dialogues[${index}]`;
    if (!isObject(each)) throw new Error(`${where} must be an object.`);
    return {
      id: requireText(each.id, `${where}.id`),
      title: requireText(each.title, `${where}.title`),
      named: each.named === true,
      system: typeof each.system === "string" ? each.system : "",
      persona: typeof each.persona === "string" ? each.persona : "",
      model: typeof each.model === "string" ? each.model : null,
      settings: isObject(each.settings) ? each.settings : {},
      chosen: isObject(each.chosen) ? each.chosen : {},
      createdMs: requireNumber(each.createdMs, `${where}.createdMs`),
      changedMs: requireNumber(each.changedMs, `${where}.changedMs`),
    };
  });
  const known = new Set(dialogues.map(({ id }) => id));
  const ids = new Set(value.messages.map((each) => `${each?.dialogue} ${each?.id}`));
  const messages = value.messages.map((each, index) => {
    const where = `messages[${index}]`;
    if (!isObject(each)) throw new Error(`${where} must be an object.`);
    if (!known.has(each.dialogue)) throw new Error(`${where}.dialogue is none of the file's dialogues.`);
    if (!ROLES.includes(each.role)) throw new Error(`${where}.role must be one of ${ROLES.join(", ")}.`);
    if (each.parent !== "" && !ids.has(`${each.dialogue} ${each.parent}`)) throw new Error(`${where}.parent is none of the file's messages.`);
    requireText(each.id, `${where}.id`);
    requireText(each.content, `${where}.content`);
    requireNumber(each.createdMs, `${where}.createdMs`);
    return each;
  });
  const personas = value.personas.map((each, index) => ({
    name: requireText(each?.name, `personas[${index}].name`),
    system: requireText(each?.system, `personas[${index}].system`),
  }));
  return { dialogues, messages, personas };
}

function requireNumber(value, where) {
  if (typeof value === "number" && Number.isFinite(value)) return value;
  throw new Error(`${where} must be a number.`);
}
