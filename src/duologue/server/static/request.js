// The body of a chat completion. Prompts only grow: a turn sends exactly the messages that the last one sent, and more after
// them, so that the server finds all of them in its cache. Nothing that changes by the turn may come before them.

import { samplingFields } from "./sampling.js";

/** `messages` from the beginning to the one that is answered, or, with `continues`, to the reply that goes on. */
export function requestBody({ model, dialogue, messages, continues = false }) {
  const system = dialogue.system?.trim() ? [{ role: "system", content: dialogue.system }] : [];
  return {
    model,
    messages: [...system, ...messages.map(({ role, content }) => ({ role, content }))],
    ...samplingFields(dialogue.settings),
    prompt_cache_key: dialogue.id,
    // A long dialogue goes on: the server drops its oldest turns, in steps that leave the rest in its memory.
    truncation: "auto",
    ...(continues ? { continue_final_message: true } : {}),
  };
}
