// Model text to DOM nodes: paragraphs, headings, quotes, lists, fenced and inline code, bold and italic. Text only ever becomes
// text nodes, so nothing that a model says can become markup.

const shown = new WeakMap(); // parent to the blocks that it shows

/** Makes `parent` show `text`. Blocks that are the same as before stay, so a growing text changes its last block only. */
export function render(parent, text) {
  const blocks = parse(text.split("\n"));
  const before = shown.get(parent) ?? [];
  let same = 0;
  while (same < before.length && same < blocks.length && before[same].key === blocks[same].key) same += 1;
  while (parent.childNodes.length > same) parent.lastChild.remove();
  for (const block of blocks.slice(same)) parent.append(BUILD[block.kind](block));
  shown.set(parent, blocks);
}

function parse(lines) {
  const blocks = [];
  let open = null; // a paragraph, quote or list that the next line may belong to
  const add = (kind, fields) => blocks.push((open = { kind, lines: [], ...fields }));
  for (let i = 0; i < lines.length; i++) {
    const line = lines[i];
    const fence = line.match(/^\s*(`{3,}|~{3,})/);
    const heading = line.match(/^#{1,6}\s+(.+)/);
    const item = line.match(/^\s*(?:[-*•]|(\d{1,4})[.)])\s+(.+)/);
    const quote = line.match(/^\s*>\s?(.*)/);
    if (fence) {
      add("code");
      // An open fence at the end of the text is one that is still being written.
      while (++i < lines.length && !lines[i].trimStart().startsWith(fence[1])) open.lines.push(lines[i]);
      open = null;
    } else if (heading) {
      add("heading");
      open.lines.push(heading[1]);
      open = null;
    } else if (/^\s*([-*_])(?:\s*\1){2,}\s*$/.test(line)) {
      add("rule");
      open = null;
    } else if (item) {
      const kind = item[1] ? "numbers" : "bullets";
      if (open?.kind !== kind) add(kind, item[1] ? { start: Number(item[1]) } : {});
      open.lines.push(item[2]);
    } else if (quote) {
      if (open?.kind !== "quote") add("quote");
      open.lines.push(quote[1]);
    } else if (!line.trim()) {
      if (open?.kind === "paragraph" || open?.kind === "quote") open = null; // items may be apart
    } else {
      if (open?.kind !== "paragraph") add("paragraph");
      open.lines.push(line);
    }
  }
  for (const block of blocks) block.key = `${block.kind} ${block.start ?? ""}\n${block.lines.join("\n")}`;
  return blocks;
}

const BUILD = {
  paragraph: ({ lines }) => withInline("p", lines.join("\n")),
  heading: ({ lines }) => withInline("h4", lines[0]),
  rule: () => document.createElement("hr"),
  bullets: ({ lines }) => list("ul", lines),
  numbers({ lines, start }) {
    const made = list("ol", lines);
    if (start !== 1) made.start = start;
    return made;
  },
  quote({ lines }) {
    const made = document.createElement("blockquote");
    made.append(withInline("p", lines.join("\n")));
    return made;
  },
  code({ lines }) {
    const made = document.createElement("pre");
    made.tabIndex = 0; // it may scroll sideways, by keyboard too
    made.append(leaf("code", lines.join("\n")));
    return made;
  },
};

function list(tag, items) {
  const made = document.createElement(tag);
  for (const item of items) made.append(withInline("li", item));
  return made;
}

const INLINE = /(`[^`\n]+`|\*\*[^*\n]+\*\*|(?<![\w*])\*(?=\S)[^*\n]+(?<=\S)\*(?![\w*])|(?<![\w_])_(?=\S)[^_\n]+(?<=\S)_(?![\w_]))/;

function withInline(tag, text) {
  const element = document.createElement(tag);
  text.split(INLINE).forEach((piece, index) => {
    if (index % 2 === 0) element.append(piece);
    else if (piece.startsWith("`")) element.append(leaf("code", piece.slice(1, -1)));
    else if (piece.startsWith("**")) element.append(leaf("strong", piece.slice(2, -2)));
    else element.append(leaf("em", piece.slice(1, -1)));
  });
  return element;
}

function leaf(tag, text) {
  const element = document.createElement(tag);
  element.textContent = text;
  return element;
}
