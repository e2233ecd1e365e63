// All of what the page stores in one file, every branch included: {"duologue_backup": 1, dialogues, messages, personas}.

import { isObject, requireText } from "./turns.js";

const VERSION = 1;
const NO_FIGURES = { exact: false, firstTokenMs: null, tokensPerS: null, tokens: 0, promptTokens: null, cachedTokens: 0 };
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
      settings: record(each.settings ?? {}, `${where}.settings`, isSetting, "a number, a text or a list of texts"),
      chosen: record(each.chosen ?? {}, `${where}.chosen`, (id) => typeof id === "string", "an id"),
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
    const message = {
      id: requireText(each.id, `${where}.id`),
      dialogue: each.dialogue,
      parent: each.parent,
      role: each.role,
      content: requireText(each.content, `${where}.content`),
      createdMs: requireNumber(each.createdMs, `${where}.createdMs`),
    };
    for (const name of ["reason", "model"]) {
      if (each[name] !== undefined && each[name] !== null) message[name] = requireText(each[name], `${where}.${name}`);
    }
    if (each.figures !== undefined && each.figures !== null) {
      message.figures = { ...NO_FIGURES, ...record(each.figures, `${where}.figures`, isFigure, "of the kind that this page writes") };
    }
    return message;
  });
  const personas = value.personas.map((each, index) => ({
    name: requireText(each?.name, `personas[${index}].name`),
    system: requireText(each?.system, `personas[${index}].system`),
  }));
  return { dialogues, messages, personas };
}

const isFigure = (value, name) =>
  name === "exact" ? typeof value === "boolean" : Number.isFinite(value) || (value === null && name !== "cachedTokens");

const isSetting = (value) =>
  typeof value === "string" || Number.isFinite(value) || (Array.isArray(value) && value.every((each) => typeof each === "string"));

/** A copy of an object of which every value is of one kind. */
function record(value, where, isRight, kind) {
  if (!isObject(value)) throw new Error(`${where} must be an object.`);
  for (const [name, each] of Object.entries(value)) if (!isRight(each, name)) throw new Error(`${where}.${name} must be ${kind}.`);
  return { ...value };
}

function requireNumber(value, where) {
  if (typeof value === "number" && Number.isFinite(value)) return value;
  throw new Error(`${where} must be a number.`);
}
