// The tokens of a prompt as a bar: from memory, and computed.

/** A bar with its numbers, for one reply's `usage`. */
export function promptBar({ prompt_tokens: total, prompt_tokens_details: details }) {
  const memory = details?.cached_tokens ?? 0;
  const parts = [
    ["memory", "from memory", memory],
    ["computed", "computed", total - memory],
  ];
  const percent = total ? Math.round((100 * memory) / total) : 0;
  const box = element("div", "prompt");
  const bar = element("div", "bar");
  const legend = element("div", "legend");
  bar.title = `${percent} % of the prompt's ${total.toLocaleString()} tokens came from memory`;
  bar.setAttribute("aria-hidden", "true"); // the legend says the same in words
  legend.append(`Prompt ${total.toLocaleString()} tokens:`);
  for (const [kind, words, tokens] of parts) {
    const part = element("span", kind);
    part.style.flexGrow = tokens;
    if (tokens) bar.append(part);
    const item = element("span", `key ${kind}`);
    item.textContent = `${tokens.toLocaleString()} ${words}`;
    legend.append(item);
  }
  box.append(bar, legend);
  return box;
}

function element(tag, className) {
  const made = document.createElement(tag);
  made.className = className;
  return made;
}
