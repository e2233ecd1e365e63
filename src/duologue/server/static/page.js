// The page: which dialogue is open, and what its parts tell each other.

import { useKey } from "./access.js";
import { Chat, newRecord } from "./chat.js";
import { copy } from "./clipboard.js";
import { Composer } from "./composer.js";
import { at, editInPlace, make, writesText } from "./dom.js";
import { closeDrawer, drawerIsOpen, openDrawer } from "./drawer.js";
import { bindKeys } from "./keyboard.js";
import { MessagesView } from "./messages_view.js";
import { Models } from "./models.js";
import { FIRST_SETTINGS } from "./sampling.js";
import { SettingsPanel } from "./settings_panel.js";
import { Sidebar } from "./sidebar.js";
import { openStore } from "./store.js";
import { toast, undo } from "./toast.js";
import { TransferPanel } from "./transfer_panel.js";

const store = await openStore();
const models = new Models();
const busy = new Map(); // dialogues that are being answered, by id; they go on while another one is open
let defaults = await store.value("settings", FIRST_SETTINGS);
let chat = draft();
const title = at("title"); // it is out of the page while the name is changed

const do_ = {
  swipe: (message, by) => {
    const last = message === chat.path.at(-1);
    if (!chat.swipe(message, by) && by > 0 && last && message.role === "assistant") do_.answer(message);
  },
  edit: (message, content) => needsModel(message.role === "user", (model) => chat.edit(message, content, model)),
  answer: (message) => needsModel(true, (model) => chat.answer(model, message)),
  goOn: (message) => needsModel(true, (model) => chat.goOn(message, model)),
  copy: (message) => copy(message.content),
  branch: async (message) => {
    const made = chat.branch(message);
    if (!(await keep(() => store.add({ dialogues: [made.record], messages: made.messages })))) return;
    go(made.record.id);
    toast("This is a new dialogue from that message on.");
  },
  remove: async (message) => {
    const from = chat;
    const gone = await from.removeMessage(message);
    if (!gone.length) return;
    const words = gone.length === 1 ? "Message deleted" : `${gone.length} messages deleted`;
    toast(words, { action: { label: "Undo", run: () => restore(from.id, gone) } });
  },
};

const view = new MessagesView(do_);
const composer = new Composer({
  ask: (text) => needsModel(true, (model) => chat.ask(text, model)),
  stop: () => chat.stop(),
  swipe: (by) => chat.path.length && do_.swipe(chat.path.at(-1), by),
  focusMessages: () => view.focusLast(),
});
const sidebar = new Sidebar(store, {
  open: () => closeDrawer(),
  rename: (record, title) => rename(record.id, title),
  remove: (record) => removeDialogue(record),
});
const settings = new SettingsPanel(store, models);
const transfer = new TransferPanel(store, {
  settings: () => defaults,
  imported: async (id) => {
    await list();
    if (id) go(id);
  },
});

function draft() {
  return listen(new Chat(store, newRecord({ settings: defaults })));
}

function listen(made) {
  const shown = () => made === chat;
  made.addEventListener("change", () => {
    if (made.reply) busy.set(made.id, made);
    if (shown()) show();
    list();
  });
  made.addEventListener("token", () => shown() && view.grow());
  made.addEventListener("done", () => {
    if (busy.get(made.id) === made) busy.delete(made.id);
    if (made.failure?.code === "invalid_api_key") models.lock();
    list();
    const last = made.path.at(-1);
    if (shown() && last?.role === "assistant") at("announcer").textContent = view.item(last.id)?.announcement ?? "";
  });
  made.addEventListener("record", () => {
    if (shown()) showHead();
    list();
  });
  made.addEventListener("storage", () => shown() && showStorage());
  return made;
}

/** Runs with the model's id, when one is needed and there is one. */
function needsModel(needed, act) {
  const model = models.idFor(chat.record);
  if (needed && (model === null || chat.reply)) return;
  return act(model);
}

async function keep(write) {
  try {
    await write();
    return true;
  } catch (error) {
    toast(`This could not be stored: ${storageText(error)}`, { error: true });
    return false;
  }
}

// ---- which dialogue is open: the address names it, so that the browser's back and a bookmark work

const go = (id) => (location.hash = id);

async function route() {
  const id = location.hash.slice(1);
  if (id === chat.id) return;
  if (!id) {
    if (chat.stored) chat = draft();
  } else {
    const loaded = busy.get(id) ?? (await load(id));
    if (location.hash.slice(1) !== id) return; // another one has been asked for meanwhile
    if (loaded) chat = loaded;
    else {
      toast("That dialogue is not stored in this browser.");
      return newChat();
    }
  }
  show();
  list();
}

async function load(id) {
  const found = await store.load(id);
  return found && listen(new Chat(store, found.record, found.messages));
}

function newChat() {
  chat = draft();
  history.pushState(null, "", location.pathname);
  closeDrawer();
  show();
  list();
  composer.focus();
}

async function rename(id, title) {
  const record = { title, named: true };
  if (id === chat.id) return chat.update(record);
  const other = busy.get(id) ?? (await load(id));
  await other?.update(record);
}

/** Puts messages back into a dialogue that may have been left, and opened again, meanwhile. */
async function restore(id, messages) {
  const target = id === chat.id ? chat : (busy.get(id) ?? (await load(id)));
  await target?.restoreMessages(messages);
}

async function removeDialogue({ id, title }) {
  const open = busy.get(id) ?? (id === chat.id ? chat : null);
  open?.abandon();
  busy.delete(id); // taken back before the reply has ended, the dialogue is read anew
  let gone;
  if (!(await keep(async () => (gone = await store.remove(id))))) {
    if (open === chat && (chat = (await load(id)) ?? draft())) show();
    return;
  }
  models.forget(id);
  if (id === chat.id) newChat();
  await list();
  const back = async () => {
    if (!(await keep(() => store.add({ dialogues: [gone.record], messages: gone.messages })))) return;
    await list();
    go(id);
  };
  toast(`“${title}” deleted`, { action: { label: "Undo", run: back } });
}

// ---- showing

let listing = false;
let listAgain = false;

/** Reads the list of dialogues and shows it; calls that come meanwhile make one more. */
async function list() {
  if (listing) return void (listAgain = true);
  listing = true;
  try {
    do {
      listAgain = false;
      sidebar.show(await store.dialogues(), chat.id, new Set(busy.keys()));
    } while (listAgain);
  } finally {
    listing = false;
  }
}

function show() {
  if (chat.stored && location.hash.slice(1) !== chat.id) history.replaceState(null, "", `#${chat.id}`);
  view.show(chat, { persona: chat.record.persona, manyModels: models.entries.length > 1 });
  showHead();
  showStorage();
}

function showHead() {
  const { record } = chat;
  const empty = chat.path.length === 0;
  const model = models.idFor(record);
  title.textContent = empty && !chat.stored ? "New dialogue" : record.title;
  title.disabled = !chat.stored;
  document.title = chat.stored ? `${record.title} · duologue` : "duologue";
  const words = { connecting: "connecting…", unreachable: "server not reachable", locked: "API key needed" };
  at("model").textContent = words[models.state] ?? model;
  at("model").classList.toggle("bad", models.state === "unreachable" || models.state === "locked");
  const context = models.contextTokens(model);
  at("model").title = context ? `${context.toLocaleString()} tokens of context; opens the settings` : "Settings";
  at("persona-badge").textContent = record.persona;
  at("persona-badge").hidden = !record.persona;
  const locked = models.state === "locked";
  at("access").hidden = !locked;
  at("access-fault").textContent = locked && models.keyRefused ? "The server does not know this key." : "";
  at("welcome").hidden = !empty || locked;
  if (empty && !locked) showPersonas();
  composer.show(chat.id, model !== null && models.state !== "locked", chat.reply !== null);
}

async function showPersonas() {
  const personas = await store.personas();
  at("personas").hidden = personas.length === 0;
  at("personas-list").replaceChildren(
    ...personas.map(({ name, system }) => {
      const chosen = chat.record.persona === name;
      const button = make("button", { type: "button", className: "chip", textContent: name, "aria-pressed": String(chosen) });
      button.addEventListener("click", () => chat.update(chosen ? { persona: "", system: "" } : { persona: name, system }));
      return button;
    }),
  );
}

function showStorage() {
  const fault = chat.storageFault;
  at("storage").hidden = store.durable && !fault;
  at("storage-text").textContent = fault
    ? `Not stored: ${storageText(fault)} What is shown stays in this tab only.`
    : "This browser lets the page store nothing here: dialogues end with this tab. Export what you want to keep.";
  at("storage-retry").hidden = !fault;
}

const storageText = (error) =>
  error?.name === "QuotaExceededError"
    ? "the browser's space for this page is full. Delete or export dialogues."
    : `${error?.message ?? error}`;

// ---- events

addEventListener("hashchange", route);
at("storage-retry").addEventListener("click", () => chat.save());
at("new").addEventListener("click", newChat);
title.addEventListener("click", () => editInPlace(title, chat.record.title, "Name of the dialogue", (name) => rename(chat.id, name)));
at("model").addEventListener("click", () => settings.open(chat));
at("persona-badge").addEventListener("click", () => settings.open(chat));
at("settings-button").addEventListener("click", () => settings.open(chat));
at("transfer-button").addEventListener("click", () => transfer.open(chat));
at("keys-button").addEventListener("click", () => at("keys").showModal());
at("settings").addEventListener("close", async () => {
  defaults = await store.value("settings", FIRST_SETTINGS);
  show();
});
for (const panel of document.querySelectorAll("dialog")) {
  // A click on the panel itself is one beside its content.
  panel.addEventListener("click", (event) => event.target === panel && panel.close());
  panel.querySelector(".close").addEventListener("click", () => panel.close());
}
at("starters").addEventListener("click", (event) => {
  const starter = event.target.closest("button");
  if (starter) needsModel(true, (model) => chat.ask(starter.textContent, model));
});
at("access").addEventListener("submit", (event) => {
  event.preventDefault();
  if (useKey(at("key").value)) {
    at("key").value = "";
    models.load();
  } else {
    at("access-fault").textContent = "A key has no spaces and no letters outside ASCII.";
  }
});
models.addEventListener("change", () => {
  show();
  if (models.state === "locked") at("key").focus();
});
store.addEventListener("change", async ({ detail: id }) => {
  list();
  if (id === chat.id) {
    const found = await store.load(id);
    if (found) chat.refresh(found);
    else if (chat.stored) {
      chat.detach();
      toast("Another tab has deleted this dialogue. It is stored again if you go on.");
    }
  } else if (id === null) {
    defaults = await store.value("settings", FIRST_SETTINGS);
    showHead();
  }
});

bindKeys({
  escape: () => {
    if (drawerIsOpen()) closeDrawer();
    else if (chat.reply) chat.stop();
    else if (writesText(document.activeElement)) return false;
    else composer.focus();
    return true;
  },
  search: () => {
    openDrawer();
    sidebar.focusSearch();
  },
  fresh: newChat,
  settings: () => settings.open(chat),
  help: () => at("keys").showModal(),
  undo,
});

await route();
show();
list();
models.load();
composer.focus();
