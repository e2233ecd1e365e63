// The panel of one dialogue's settings: persona and system prompt, model, sampling. Each change holds at once.

import { at, make } from "./dom.js";
import { FIELDS, parseField, parseStops, showStops } from "./sampling.js";
import { toast } from "./toast.js";

export class SettingsPanel {
  #panel = at("settings");
  #store;
  #models;
  #chat = null;
  #inputs = new Map();

  constructor(store, models) {
    this.#store = store;
    this.#models = models;
    const grid = at("sampling");
    for (const field of FIELDS) grid.append(this.#field(field));
    at("stops").addEventListener("change", () => this.#takeStops());
    at("system").addEventListener("change", () => this.#chat.update({ system: at("system").value }));
    at("persona").addEventListener("change", () => this.#choosePersona(at("persona").value));
    at("persona-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#savePersona();
    });
    at("persona-delete").addEventListener("click", () => this.#deletePersona());
    at("persona-name").addEventListener("input", () => this.#showPersonaButtons());
    at("model-choice").addEventListener("change", () => this.#chat.update({ model: at("model-choice").value || null }));
    at("as-default").addEventListener("click", () => this.#keepAsDefault());
    at("reset").addEventListener("click", () => this.#reset());
    models.addEventListener("change", () => this.#panel.open && this.#fill());
  }

  async open(chat) {
    this.#chat = chat;
    await this.#fill();
    this.#panel.showModal();
  }

  async #fill() {
    const { record } = this.#chat;
    at("system").value = record.system;
    at("persona-name").value = record.persona;
    await this.#fillPersonas();
    const model = this.#models.idFor(record);
    at("model-choice").replaceChildren(
      ...this.#models.entries.map(({ id, context_tokens: tokens }) =>
        make("option", { value: id, textContent: tokens ? `${id} (${tokens.toLocaleString()} tokens of context)` : id }),
      ),
    );
    at("model-choice").value = model ?? "";
    at("model-lost").hidden = record.model === null || record.model === model;
    at("model-lost").textContent = `${record.model} is not on this server.`;
    for (const [name, { input, fault }] of this.#inputs) {
      input.value = record.settings[name] ?? "";
      this.#fault(input, fault, "");
    }
    at("stops").value = showStops(record.settings.stop);
    this.#fault(at("stops"), at("stops-fault"), "");
  }

  async #fillPersonas() {
    const personas = await this.#store.personas();
    const { persona } = this.#chat.record;
    at("persona").replaceChildren(
      make("option", { value: "", textContent: "None" }),
      ...personas.map(({ name }) => make("option", { value: name, textContent: name })),
    );
    at("persona").value = personas.some(({ name }) => name === persona) ? persona : "";
    this.#showPersonaButtons();
  }

  #showPersonaButtons() {
    const name = at("persona-name").value.trim();
    const names = [...at("persona").options].map(({ value }) => value).filter(Boolean);
    const known = names.includes(name);
    at("persona-save").textContent = known ? "Update persona" : "Save as persona";
    at("persona-save").disabled = !name;
    at("persona-delete").hidden = !known;
  }

  async #choosePersona(name) {
    const persona = (await this.#store.personas()).find((each) => each.name === name);
    await this.#chat.update({ persona: name, system: persona?.system ?? "" });
    at("system").value = this.#chat.record.system;
    at("persona-name").value = name;
    this.#showPersonaButtons();
  }

  async #savePersona() {
    const name = at("persona-name").value.trim();
    if (!name) return;
    const system = at("system").value;
    try {
      await this.#store.savePersona({ name, system });
    } catch (error) {
      return toast(`The persona could not be stored: ${error.message}`, { error: true });
    }
    await this.#chat.update({ persona: name, system });
    await this.#fillPersonas();
    at("persona-status").textContent = `Saved ${name}.`;
  }

  async #deletePersona() {
    const name = at("persona-name").value.trim();
    const gone = (await this.#store.personas()).find((each) => each.name === name);
    await this.#store.removePersona(name);
    await this.#fillPersonas();
    at("persona-status").textContent = `Deleted ${name}.`;
    const back = { label: "Undo", run: () => this.#store.savePersona(gone) };
    toast(`Persona ${name} deleted`, { action: back });
  }

  #field(field) {
    const id = `set-${field.name}`;
    const fault = make("span", { id: `${id}-fault`, className: "fault", role: "alert" });
    const input = make("input", {
      id,
      type: "text",
      inputMode: field.integer ? "numeric" : "decimal",
      placeholder: "not set",
      autocomplete: "off",
      "aria-describedby": `${id}-hint ${id}-fault`,
    });
    const take = () => {
      try {
        const value = parseField(field, input.value);
        this.#fault(input, fault, "");
        const settings = { ...this.#chat.record.settings };
        if (value === null) delete settings[field.name];
        else settings[field.name] = value;
        this.#chat.update({ settings });
      } catch (error) {
        this.#fault(input, fault, error.message);
      }
    };
    input.addEventListener("change", take);
    input.addEventListener("keydown", (event) => {
      const by = { ArrowUp: 1, ArrowDown: -1 }[event.key];
      if (!by) return;
      event.preventDefault();
      const step = field.step ?? 1;
      const value = Math.min(field.max, Math.max(field.min, Number(input.value || field.min) + by * step));
      input.value = String(Number(value.toFixed(4)));
      take();
    });
    this.#inputs.set(field.name, { input, fault });
    const hint = make("span", { id: `${id}-hint`, className: "hint", textContent: field.hint });
    return make("div", { className: "field" }, make("label", { for: id, textContent: field.label }), input, hint, fault);
  }

  #takeStops() {
    try {
      const stop = parseStops(at("stops").value);
      this.#fault(at("stops"), at("stops-fault"), "");
      const { stop: _, ...settings } = this.#chat.record.settings;
      this.#chat.update({ settings: stop.length ? { ...settings, stop } : settings });
    } catch (error) {
      this.#fault(at("stops"), at("stops-fault"), error.message);
    }
  }

  #fault(input, place, text) {
    place.textContent = text;
    if (text) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  }

  async #keepAsDefault() {
    await this.#store.setValue("settings", this.#chat.record.settings);
    at("default-status").textContent = "New dialogues start with these.";
  }

  async #reset() {
    await this.#chat.update({ settings: {} });
    await this.#fill();
  }
}
