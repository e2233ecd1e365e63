// Dialogues to and from files. Which format a file has is found from what is in it, not from its name.
//
// What formats exchange is {title, system, persona, turns}; a turn is {role, alternatives: [text...], chosen, createdMs}.
// Only SillyTavern's format has alternatives; the others keep the one that is shown.

import { fromBackup, isBackup } from "./backup.js";
import { parseJson } from "./json_place.js";
import { fromOpenAi, isOpenAi, toOpenAi } from "./openai_format.js";
import { fromShareGpt, isShareGpt, toShareGpt } from "./sharegpt_format.js";
import { fromSillyTavern, isSillyTavern, toSillyTavern } from "./sillytavern_format.js";

export const EXPORTS = [
  { name: "openai", label: "OpenAI messages", extension: "json", write: toOpenAi },
  { name: "sillytavern", label: "SillyTavern chat", extension: "jsonl", write: toSillyTavern },
  { name: "sharegpt", label: "ShareGPT", extension: "json", write: toShareGpt },
];

const FILE_BYTES = 64 * 1024 * 1024;
const KNOWN = "OpenAI messages (JSON), a SillyTavern chat (JSONL), ShareGPT (JSON) and this page's backup (JSON)";

/** Reads a `File`; returns {dialogues, notes} or {backup}. Throws an error that names the file and what is wrong in it. */
export async function readFile(file) {
  try {
    if (file.size > FILE_BYTES) throw new Error(`It is larger than ${FILE_BYTES / 2 ** 20} MiB; split it.`);
    return readText(await file.text(), file.name.replace(/\.[^.]*$/, ""));
  } catch (error) {
    throw new Error(`${file.name}: ${error.message}`);
  }
}

/** Reads a file's text. `title` is for formats that have none. */
export function readText(text, title = "Imported") {
  text = text.replace(/^\ufeff/, "");
  if (!text.trim()) throw new Error("The file is empty.");
  const { values, lines } = parse(text);
  const first = values[0];
  if (lines === null && isBackup(first)) return { backup: fromBackup(first) };
  const notes = [];
  let dialogues;
  if (isSillyTavern(first)) {
    dialogues = [fromSillyTavern(values, lines ?? values.map(() => null), notes)];
  } else {
    // A file may hold one dialogue, a list of them, or one a line.
    const list = lines === null && Array.isArray(first) && !isTurn(first[0]) ? first : values;
    if (!list.length) throw new Error("The file holds an empty list.");
    dialogues = list.map((value, index) => {
      const where = lines ? `Line ${lines[index]}: ` : list.length > 1 ? `Dialogue ${index + 1}: ` : "";
      try {
        if (isOpenAi(value)) return fromOpenAi(value);
        if (isShareGpt(value)) return fromShareGpt(value);
      } catch (error) {
        throw new Error(where + error.message);
      }
      throw new Error(`${where}this is none of the formats that can be read: ${KNOWN}.`);
    });
  }
  dialogues.forEach((dialogue, index) => {
    dialogue.title ??= dialogues.length > 1 ? `${title} ${index + 1}` : title;
  });
  return { dialogues, notes };
}

const isTurn = (value) => typeof value === "object" && value !== null && ("role" in value || "from" in value);

/** One JSON value, or one on each line; `lines` then has the number of each. */
function parse(text) {
  const lines = text.split("\n").map((line, index) => [line, index + 1]).filter(([line]) => line.trim());
  let separate = false;
  if (lines.length > 1) {
    try {
      // Of a file of lines the first is complete; of one value over many lines it is not.
      separate = typeof JSON.parse(lines[0][0]) === "object";
    } catch {
      separate = false;
    }
  }
  if (!separate) return { values: [parseJson(text)], lines: null };
  return { values: lines.map(([line, number]) => parseJson(line, number)), lines: lines.map(([, number]) => number) };
}
