// The API key, where the server asks for one. It stays in this tab and ends with it.

const NAME = "duologue.key";
let key = stored();

/** `headers` with the key, if there is one. */
export const withKey = (headers = {}) => (key ? { ...headers, authorization: `Bearer ${key}` } : headers);

/** Takes a key for all later requests; false for something that cannot be a key. */
export function useKey(value) {
  const given = value.trim();
  if (!/^[!-~]+$/.test(given)) return false;
  key = given;
  try {
    sessionStorage.setItem(NAME, key);
  } catch {
    // Blocked storage: the key has to be given again after a reload.
  }
  return true;
}

function stored() {
  try {
    return sessionStorage.getItem(NAME) ?? "";
  } catch {
    return "";
  }
}
