// The one way from the portal to the server: every request carries the profile's token, and goes to our own paths.

export class PortalClient {
  #token;
  #endpoint;
  #api;

  constructor(token, { endpoint, api }) {
    this.#token = token;
    this.#endpoint = endpoint;
    this.#api = api;
  }

  static async of(text, paths) {
    let profile;
    try {
      profile = JSON.parse(text);
    } catch {
      throw new Error("This is no profile file: it is not JSON. Take the file that you saved from the activation link.");
    }
    if (typeof profile?.endpoint !== "string") {
      throw new Error("This is no profile file: it names no endpoint. Take the file that you saved from the activation link.");
    }
    // The token is a key to one server; another one is not to see it, and cannot use it.
    if (profile.endpoint.replace(/\/+$/, "") !== paths.protocol) {
      throw new Error(`This profile is for ${profile.endpoint}, and this is the portal of ${paths.protocol}. Open the portal there.`);
    }
    if (typeof profile.bearerToken === "string") return new PortalClient(profile.bearerToken, paths);
    if (typeof profile.clientSecret === "string") return new PortalClient(await accessToken(profile), paths);
    throw new Error("This profile has no token that a browser can use. Your tools can use it all the same.");
  }

  async status() {
    return this.#json(`${this.#api}/status`);
  }

  async catalog() {
    const shares = await this.#items(`${this.#endpoint}/shares`);
    for (const share of shares) {
      share.tables = await this.#items(`${this.#endpoint}/shares/${encodeURIComponent(share.name)}/all-tables`);
    }
    return shares;
  }

  async news(share, token) {
    const page = token ? `&pageToken=${encodeURIComponent(token)}` : "";
    return this.#json(`${this.#endpoint}/shares/${encodeURIComponent(share)}/publications?format=json&maxResults=10${page}`);
  }

  async about(table, what, query = "") {
    const names = [table.share, "schemas", table.schema, "tables", table.name].map(encodeURIComponent).join("/");
    return this.#json(`${this.#api}/shares/${names}/${what}${query}`);
  }

  async #items(path) {
    const found = [];
    let token = "";
    do {
      const page = await this.#json(path + (token && `?pageToken=${encodeURIComponent(token)}`));
      found.push(...(page.items ?? []));
      token = page.nextPageToken ?? "";
    } while (token);
    return found;
  }

  async #json(path) {
    const headers = { Authorization: `Bearer ${this.#token}` };
    return answerOf(() => fetch(path, { headers, cache: "no-store", credentials: "omit", redirect: "error" }));
  }
}

async function accessToken({ tokenEndpoint, clientId, clientSecret, scope }) {
  if (new URL(tokenEndpoint).origin !== location.origin) {
    throw new Error("This profile gets its tokens from another server, which this page does not ask.");
  }
  const body = new URLSearchParams({ grant_type: "client_credentials", ...(scope && { scope }) });
  const headers = { Authorization: `Basic ${btoa(`${clientId}:${clientSecret}`)}` };
  const given = await answerOf(() => fetch(tokenEndpoint, { method: "POST", headers, body, credentials: "omit" }));
  return given.access_token;
}

async function answerOf(ask) {
  let answer;
  try {
    answer = await ask();
  } catch {
    throw new Error("The server does not answer. Try again in a moment.");
  }
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(body.message ?? body.error_description ?? `The server answered ${answer.status}.`);
  return body;
}
