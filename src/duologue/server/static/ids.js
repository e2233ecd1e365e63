// Ids that two tabs never choose twice. `crypto.randomUUID` exists only where the page comes over https or from localhost.

/** 128 random bits as 32 hexadecimal digits. */
export function newId() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
