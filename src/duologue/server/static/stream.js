// A streamed chat completion, as an async iterator over its parsed chunks.

import { withKey } from "./access.js";

/** An error that the server answered with, in OpenAI's shape; `code` may be null. */
export class ServerError extends Error {
  constructor(error, status) {
    super(error?.message ?? `The server answered with status ${status}.`);
    this.code = error?.code ?? null;
    this.status = status;
  }
}

/** Yields the chunks of one reply. Throws `ServerError`, or an `AbortError` once `signal` fires. */
export async function* chatChunks(request, signal) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: withKey({ "content-type": "application/json" }),
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) {
    const body = await response.json().catch(() => null);
    throw new ServerError(body?.error, response.status);
  }
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(chunk.error, 200);
    yield chunk;
  }
  throw new Error("The server closed the connection before the reply was complete.");
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}
