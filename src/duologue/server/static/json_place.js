// Where a text stops being JSON. Browsers' own messages name the place in different ways, or not at all.

const TOKEN = /[ \t\r\n]*(?:([{}[\],:])|("(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")|(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])|true\b|false\b|null\b))/y;

/** Parses; throws an error with line and column of what is wrong. `firstLine` is the line that the text begins at. */
export function parseJson(text, firstLine = 1) {
  try {
    return JSON.parse(text);
  } catch {
    const at = brokenAt(text);
    const before = text.slice(0, at).split("\n");
    const found = at < text.length ? `unexpected ${JSON.stringify([...text.slice(at, at + 2)][0])}` : "it ends too early";
    const line = firstLine + before.length - 1;
    throw new Error(`Line ${line}, column ${before.at(-1).length + 1}: this is not valid JSON (${found}).`);
  }
}

// A value is expected where `need` says so; `open` holds the brackets that are open.
function brokenAt(text) {
  const open = [];
  let need = "value";
  TOKEN.lastIndex = 0;
  for (;;) {
    const start = TOKEN.lastIndex;
    const match = TOKEN.exec(text);
    const place = start + text.slice(start).search(/[^ \t\r\n]|$/);
    if (!match) return place;
    const [, mark, string, other] = match;
    const inside = open.at(-1);
    if (need === "value" || need === "value or ]") {
      if (mark === "{") open.push("{"), (need = "key or }");
      else if (mark === "[") open.push("["), (need = "value or ]");
      else if (mark === "]" && need === "value or ]") open.pop(), (need = "next");
      else if (string || other) need = "next";
      else return place;
    } else if (need === "key" || need === "key or }") {
      if (string) need = ":";
      else if (mark === "}" && need === "key or }") open.pop(), (need = "next");
      else return place;
    } else if (need === ":") {
      if (mark !== ":") return place;
      need = "value";
    } else if (mark === "," && inside) {
      need = inside === "{" ? "key" : "value";
    } else if ((mark === "}" && inside === "{") || (mark === "]" && inside === "[")) {
      open.pop();
    } else {
      return place;
    }
  }
}
