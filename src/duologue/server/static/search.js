// Search in titles and messages: every word has to be in the title or in one message.

const AROUND = 36; // characters before a place that was found

/** Yields {record, place} as they are found, `place` being {before, match, after} in a message, or null for a title. */
export async function* search(store, records, query, signal) {
  const words = fold(query).split(/\s+/).filter(Boolean);
  if (!words.length) return;
  for (const record of records) {
    if (signal.aborted) return;
    if (hasAll(fold(record.title), words)) {
      yield { record, place: null };
      continue;
    }
    const loaded = await store.load(record.id);
    const found = [{ content: record.system ?? "" }, ...(loaded?.messages ?? [])].find(({ content }) => hasAll(fold(content), words));
    if (found) yield { record, place: placeOf(found.content, words[0]) };
  }
}

// Case is folded character by character, so that places in the folded text are places in the text.
const fold = (text) => [...text].map((c) => (c.toLowerCase().length === c.length ? c.toLowerCase() : c)).join("");
const hasAll = (text, words) => words.every((word) => text.includes(word));

function placeOf(content, word) {
  const at = fold(content).indexOf(word);
  const begin = Math.max(0, at - AROUND);
  return {
    before: (begin ? "…" : "") + content.slice(begin, at),
    match: content.slice(at, at + word.length),
    after: content.slice(at + word.length, at + word.length + 3 * AROUND),
  };
}
