// Model text to DOM nodes: paragraphs, headings, lists, fenced and inline code, bold. Text only ever becomes
// text nodes, so nothing that a model says can become markup.

/** Replaces the children of `parent` by `text`. */
export function render(parent, text) {
  parent.replaceChildren(...blocks(text.split("\n")));
}

function blocks(lines) {
  const nodes = [];
  let paragraph = [];
  let list = null;
  const flush = () => {
    if (paragraph.length) nodes.push(withInline("p", paragraph.join("\n")));
    paragraph = [];
    list = null;
  };
  for (let i = 0; i < lines.length; i++) {
    const line = lines[i];
    const fence = line.match(/^\s*(`{3,})/);
    if (fence) {
      flush();
      const code = [];
      // An open fence at the end of the text is one that is still being written.
      while (++i < lines.length && !lines[i].trimStart().startsWith(fence[1])) code.push(lines[i]);
      const pre = document.createElement("pre");
      const inner = document.createElement("code");
      inner.textContent = code.join("\n");
      pre.append(inner);
      nodes.push(pre);
      continue;
    }
    const heading = line.match(/^#{1,6}\s+(.+)/);
    const item = line.match(/^\s*(?:[-*•]|(\d{1,4})[.)])\s+(.+)/);
    if (heading) {
      flush();
      nodes.push(withInline("h3", heading[1]));
    } else if (item) {
      const kind = item[1] ? "OL" : "UL";
      if (paragraph.length || list?.tagName !== kind) {
        flush();
        list = document.createElement(kind);
        if (item[1]) list.start = Number(item[1]);
        nodes.push(list);
      }
      list.append(withInline("li", item[2]));
    } else if (!line.trim()) {
      if (paragraph.length) flush();
    } else {
      if (list) flush();
      paragraph.push(line);
    }
  }
  flush();
  return nodes;
}

function withInline(tag, text) {
  const element = document.createElement(tag);
  for (const piece of text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/)) {
    if (piece.length > 2 && piece.startsWith("`")) element.append(leaf("code", piece.slice(1, -1)));
    else if (piece.length > 4 && piece.startsWith("**")) element.append(leaf("strong", piece.slice(2, -2)));
    else if (piece) element.append(piece);
  }
  return element;
}

function leaf(tag, text) {
  const element = document.createElement(tag);
  element.textContent = text;
  return element;
}
