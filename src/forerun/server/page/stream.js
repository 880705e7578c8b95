// Requests to the server: JSON, text, and events that stream. The key stays in this tab.

const KEY = "forerun-key";

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

/** What the server says when it refuses. */
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  const headers = { ...options.headers, ...(key.get() ? { authorization: `Bearer ${key.get()}` } : {}) };
  const response = await fetch(path, { ...options, headers });
  if (!response.ok) {
    const body = await response.json().catch(() => null);
    throw new Refused(body?.error?.message ?? `the server answered with status ${response.status}.`, response.status);
  }
  return response;
}

export const getJson = async (path) => (await ask(path)).json();
export const getText = async (path) => (await ask(path)).text();

/** Server-sent events of a request, parsed; ends at [DONE], throws where the server sends an error. */
export async function* events(path, body, signal) {
  const headers = { "content-type": "application/json" };
  const response = await ask(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Refused("the stream ended early; ask again.", 0);
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.slice("data: ".length);
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Refused(event.error.message, 0);
      yield event;
    }
  }
}
