// The sampling settings: what they are called, which values they may have, and how they become fields of a request.

/** `name` is the API's field; `hint` says what it does; `integer` and the bounds are checked before anything is sent. */
export const FIELDS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05, hint: "0 always takes the likeliest token" },
  { name: "top_p", label: "Top-p", min: 0, max: 1, step: 0.01, hint: "likeliest tokens up to this share" },
  { name: "top_k", label: "Top-k", min: 0, max: 1e9, integer: true, hint: "only this many tokens; 0 is off" },
  { name: "min_p", label: "Min-p", min: 0, max: 1, step: 0.01, hint: "at least this share of the likeliest" },
  { name: "max_tokens", label: "Reply length", min: 1, max: 1e9, integer: true, hint: "tokens at most" },
  { name: "seed", label: "Seed", min: 0, max: 2 ** 53 - 1, integer: true, hint: "the same seed, the same reply" },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, hint: "per earlier use in the reply" },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, hint: "once used in the reply" },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 10, step: 0.05, hint: "of prompt and reply; 1 is off" },
];

const STOPS = 64; // as many as the server takes

// Small models ramble at the API's default temperature of 1.
export const FIRST_SETTINGS = { temperature: 0.7, top_p: 0.95 };

/** A field's text as a number; null when it is empty. Throws an error that says what is wrong. */
export function parseField({ label, min, max, integer }, text) {
  const trimmed = text.trim();
  if (!trimmed) return null;
  const value = Number(trimmed.replace(",", "."));
  if (!Number.isFinite(value)) throw new Error(`${label} must be a number.`);
  if (integer && !Number.isInteger(value)) throw new Error(`${label} must be a whole number.`);
  if (value < min) throw new Error(`${label} must be at least ${min}.`);
  if (value > max) throw new Error(`${label} must be at most ${max.toLocaleString()}.`);
  return value;
}

/** One stop string a line; `\n` and `\t` mean themselves as characters. Throws when there are too many. */
export function parseStops(text) {
  const stops = text.split("\n").filter((line) => line !== "").map((line) => line.replace(/\\([nt\\])/g, (_, c) => ESCAPES[c]));
  if (stops.length > STOPS) throw new Error(`Stop strings: at most ${STOPS}, one a line.`);
  return stops;
}

export const showStops = (stops) => (Array.isArray(stops) ? stops : []).map((stop) => stop.replace(/[\\\n\t]/g, (c) => SHOWN[c])).join("\n");

const ESCAPES = { n: "\n", t: "\t", "\\": "\\" };
const SHOWN = { "\n": "\\n", "\t": "\\t", "\\": "\\\\" };

/** The request's fields: those that are set, and no others. */
export function samplingFields(settings) {
  const fields = {};
  for (const { name } of FIELDS) if (typeof settings[name] === "number") fields[name] = settings[name];
  if (Array.isArray(settings.stop) && settings.stop.length) fields.stop = settings.stop;
  return fields;
}
