// A reply's figures: in words, and the tokens of its prompt as a bar of what came from memory and what was computed.

/** One line about a reply's message. */
export function describe({ figures, reason, model }, showModel = false) {
  if (!figures) return showModel && model ? model : "";
  const about = figures.exact ? "" : "≈ ";
  const parts = [];
  if (showModel && model) parts.push(model);
  if (figures.firstTokenMs !== null) parts.push(`first token ${formatMs(figures.firstTokenMs)}`);
  if (figures.tokensPerS !== null) parts.push(`${about}${figures.tokensPerS.toFixed(1)} tokens/s`);
  if (figures.tokens) parts.push(`${about}${figures.tokens} ${figures.tokens === 1 ? "token" : "tokens"}`);
  if (reason === "length") parts.push("cut at the length limit");
  if (reason === "stopped") parts.push("stopped");
  return parts.join(" · ");
}

const formatMs = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`);

/** A bar with its numbers, for one reply's figures. */
export function promptBar({ promptTokens: total, cachedTokens: memory }) {
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
