// One reply while it is written: sends the request, adds what arrives to its message, and takes the times.

import { requestBody } from "./request.js";
import { chatChunks } from "./stream.js";

export class Reply {
  #controller = new AbortController();

  /** `message` is the assistant's; its content and figures are changed while the reply arrives. */
  constructor(message, model) {
    this.message = message;
    this.model = model;
    this.started = false; // whether the first token has come
  }

  stop() {
    this.#controller.abort();
  }

  /** Runs to the end; returns what went wrong, or null. `grown` is called after each piece. */
  async run(dialogue, request, grown) {
    const { message, model } = this;
    const figures = { askedMs: performance.now(), firstMs: null, lastMs: null, pieces: 0 };
    let [reason, usage, failure] = [null, null, null];
    try {
      for await (const chunk of chatChunks(requestBody({ model, dialogue, ...request }), this.#controller.signal)) {
        const choice = chunk.choices[0];
        if (choice?.delta?.content) {
          figures.lastMs = performance.now();
          figures.firstMs ??= figures.lastMs;
          figures.pieces += 1;
          this.started = true;
          message.content += choice.delta.content;
          message.figures = shown(figures, null);
          grown();
        }
        reason = choice?.finish_reason ?? reason;
        usage = chunk.usage ?? usage;
      }
      if (!message.content) failure = new Error("The reply was empty: the model ended it at once.");
    } catch (error) {
      reason = "stopped";
      if (error.name !== "AbortError") failure = error;
    }
    message.reason = reason;
    message.figures = shown(figures, usage);
    return failure;
  }
}

// A stopped reply has no usage; its pieces are nearly its tokens.
function shown({ askedMs, firstMs, lastMs, pieces }, usage) {
  const tokens = usage?.completion_tokens ?? pieces;
  return {
    firstTokenMs: firstMs === null ? null : firstMs - askedMs,
    tokensPerS: tokens > 1 && lastMs > firstMs ? ((tokens - 1) * 1000) / (lastMs - firstMs) : null,
    tokens,
    exact: usage !== null,
    promptTokens: usage?.prompt_tokens ?? null,
    cachedTokens: usage?.prompt_tokens_details?.cached_tokens ?? 0,
  };
}
