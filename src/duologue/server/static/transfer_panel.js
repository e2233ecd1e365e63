// Export of the open dialogue or of everything, and import by button or by dropping files on the page.

import { toBackup } from "./backup.js";
import { at, icon, make } from "./dom.js";
import { fromExchange, toExchange } from "./exchange.js";
import { EXPORTS, readFile } from "./formats.js";
import { toast } from "./toast.js";

export class TransferPanel {
  #panel = at("transfer");
  #store;
  #do;
  #chat = null;

  /** `do_` has {imported(id), settings()}. */
  constructor(store, do_) {
    this.#store = store;
    this.#do = do_;
    for (const format of EXPORTS) {
      const words = make("span", {}, format.label, make("small", { textContent: format.extension.toUpperCase() }));
      const button = make("button", { type: "button", className: "choice" }, icon("export"), words);
      button.dataset.format = format.name;
      button.addEventListener("click", () => this.#exportOne(format));
      at("export-one").append(button);
    }
    at("export-all").addEventListener("click", () => this.#exportAll());
    at("import").addEventListener("click", () => at("file").click());
    at("import-2").addEventListener("click", () => at("file").click());
    at("file").addEventListener("change", async () => {
      const files = [...at("file").files];
      at("file").value = ""; // the same file may be chosen again
      await this.importFiles(files);
    });
    addEventListener("dragover", (event) => {
      if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
    });
    addEventListener("drop", (event) => {
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      this.importFiles([...event.dataTransfer.files]);
    });
  }

  open(chat) {
    this.#chat = chat;
    at("export-one").hidden = at("export-one-title").hidden = chat.path.length === 0;
    this.#panel.showModal();
  }

  async importFiles(files) {
    let count = 0;
    let open = null;
    const notes = [];
    for (const file of files) {
      try {
        const { dialogues, backup, notes: told } = await readFile(file);
        const settings = this.#do.settings();
        const made = dialogues?.map((dialogue) => fromExchange(dialogue, settings)) ?? [];
        await this.#store.add(
          backup ?? { dialogues: made.map(({ record }) => record), messages: made.flatMap(({ messages }) => messages) },
        );
        notes.push(...(told ?? []));
        count += backup ? backup.dialogues.length : made.length;
        open ??= (backup?.dialogues[0] ?? made[0]?.record)?.id ?? null;
      } catch (error) {
        toast(error.message, { error: true });
      }
    }
    this.#panel.close();
    if (!count) return;
    await this.#do.imported(open);
    toast([`${count === 1 ? "One dialogue" : `${count} dialogues`} imported.`, ...notes].join(" "));
  }

  #exportOne({ write, extension }) {
    const { record, tree } = this.#chat;
    save(`${fileName(record.title)}.${extension}`, write(toExchange(record, tree)));
    this.#panel.close();
  }

  async #exportAll() {
    save(`duologue-${new Date().toISOString().slice(0, 10)}.json`, toBackup(await this.#store.everything()));
    this.#panel.close();
  }
}

const fileName = (title) => title.normalize("NFKC").replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "dialogue";

function save(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/octet-stream" }));
  const link = make("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
