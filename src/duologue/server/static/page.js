import { useKey, withKey } from "./access.js";
import { render } from "./render.js";
import { chatChunks } from "./stream.js";
import { promptBar } from "./tokens.js";

const at = (id) => document.getElementById(id);
const [scroll, welcome, dialogue, text] = [at("scroll"), at("welcome"), at("dialogue"), at("text")];
const [send, stop, modelBadge] = [at("send"), at("stop"), at("model")];
const [access, key, accessFault] = [at("access"), at("key"), at("access-fault")];

// Small models ramble at the API's default temperature of 1.
const SAMPLING = { temperature: 0.7, top_p: 0.95 };

let model = null;
let messages = [];
let running = null; // the AbortController of the reply in progress

async function loadModel() {
  try {
    const response = await fetch("/v1/models", { headers: withKey() });
    if (response.status === 401) return askForKey();
    const entry = (await response.json()).data[0];
    model = entry.id;
    modelBadge.textContent = model;
    modelBadge.title = `${entry.context_tokens.toLocaleString()} tokens of context`;
    modelBadge.classList.remove("bad");
    access.hidden = true;
    document.title = `${model} · duologue`;
  } catch {
    modelBadge.textContent = "server not reachable";
    modelBadge.classList.add("bad");
    setTimeout(loadModel, 2000);
  }
  update();
}

function askForKey() {
  accessFault.textContent = withKey().authorization ? "The server does not know this key." : "";
  modelBadge.textContent = "API key needed";
  modelBadge.classList.add("bad");
  model = null;
  access.hidden = false;
  update();
  key.focus();
}

function update() {
  send.hidden = running !== null;
  stop.hidden = running === null;
  send.disabled = model === null || !text.value.trim();
  welcome.hidden = dialogue.childElementCount > 0 || !access.hidden;
}

function addTurn(role) {
  const turn = document.createElement("li");
  turn.className = role;
  const [body, figures] = [document.createElement("div"), document.createElement("div")];
  body.className = "body";
  figures.className = "figures";
  turn.append(body, figures);
  dialogue.append(turn);
  return { turn, body, figures };
}

function keepAtEnd(change) {
  const atEnd = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 60;
  change();
  if (atEnd) scroll.scrollTop = scroll.scrollHeight;
}

function fail(turn, error) {
  const failure = document.createElement("div");
  failure.className = "failure";
  failure.setAttribute("role", "alert");
  failure.textContent = error instanceof TypeError ? "The server cannot be reached. Is it still running?" : error.message;
  if (error.code === "context_length_exceeded") failure.textContent += " A new chat starts with an empty context.";
  turn.append(failure);
  if (error.code === "invalid_api_key") askForKey();
}

function describe({ askedMs, firstMs, lastMs, pieces, usage, reason }) {
  const parts = [];
  if (firstMs !== null) parts.push(`first token ${formatMs(firstMs - askedMs)}`);
  const tokens = usage?.completion_tokens ?? pieces; // a stopped reply has no usage; its pieces are nearly its tokens
  const about = usage ? "" : "≈ ";
  if (tokens > 1 && lastMs > firstMs) {
    parts.push(`${about}${(((tokens - 1) * 1000) / (lastMs - firstMs)).toFixed(1)} tokens/s`);
  }
  if (tokens) parts.push(`${about}${tokens} tokens`);
  if (reason === "length") parts.push("cut at the length limit");
  if (reason === "stopped") parts.push("stopped");
  return parts.join(" · ");
}

const formatMs = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`);

async function ask(question) {
  messages.push({ role: "user", content: question });
  addTurn("user").body.textContent = question;
  const { turn, body, figures } = addTurn("assistant");
  turn.classList.add("waiting");
  running = new AbortController();
  update();
  scroll.scrollTop = scroll.scrollHeight;

  const chat = messages;
  const state = { askedMs: performance.now(), firstMs: null, lastMs: null, pieces: 0, usage: null, reason: null };
  let reply = "";
  let painting = false;
  const paint = () => {
    painting = false;
    keepAtEnd(() => {
      render(body, reply);
      figures.textContent = describe(state);
    });
  };
  try {
    for await (const chunk of chatChunks({ model, messages, ...SAMPLING }, running.signal)) {
      const choice = chunk.choices[0];
      if (choice?.delta.content) {
        state.lastMs = performance.now();
        state.firstMs ??= state.lastMs;
        state.pieces += 1;
        reply += choice.delta.content;
        turn.classList.replace("waiting", "streaming");
        if (!painting) requestAnimationFrame(paint); // several tokens may share a frame
        painting = true;
      }
      state.reason = choice?.finish_reason ?? state.reason;
      state.usage = chunk.usage ?? state.usage;
    }
  } catch (error) {
    if (error.name === "AbortError") state.reason = "stopped";
    else fail(turn, error);
  }
  turn.classList.remove("waiting", "streaming");
  paint();
  if (state.usage) keepAtEnd(() => figures.after(promptBar(state.usage)));
  // What was said stays in the dialogue, a stopped reply included; a question without an answer does not.
  if (reply) chat.push({ role: "assistant", content: reply });
  else chat.pop();
  if (chat === messages) {
    running = null;
    update();
    text.focus();
  }
}

function submit() {
  const question = text.value.trim();
  if (!question || running || model === null) return;
  text.value = "";
  ask(question);
}

function newChat() {
  running?.abort();
  running = null;
  messages = [];
  dialogue.replaceChildren();
  update();
  text.focus();
}

access.addEventListener("submit", (event) => {
  event.preventDefault();
  if (useKey(key.value)) {
    key.value = "";
    loadModel();
  } else {
    accessFault.textContent = "A key has no spaces and no letters outside ASCII.";
  }
});
at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
text.addEventListener("input", update);
text.addEventListener("keydown", (event) => {
  // While an input method composes a word, Enter only accepts it.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
stop.addEventListener("click", () => running?.abort());
at("new").addEventListener("click", newChat);
at("starters").addEventListener("click", (event) => {
  const starter = event.target.closest("button");
  if (!starter || model === null || running) return;
  ask(starter.textContent);
});

update();
loadModel();
