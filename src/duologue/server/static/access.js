// The API key, where the server asks for one. It stays in this tab and ends with it.

const NAME = "duologue.key";
let key = sessionStorage.getItem(NAME) ?? "";

/** `headers` with the key, if there is one. */
export const withKey = (headers = {}) => (key ? { ...headers, authorization: `Bearer ${key}` } : headers);

/** Takes a key for all later requests; false for something that cannot be a key. */
export function useKey(value) {
  const given = value.trim();
  if (!/^[!-~]+$/.test(given)) return false;
  key = given;
  sessionStorage.setItem(NAME, key);
  return true;
}
