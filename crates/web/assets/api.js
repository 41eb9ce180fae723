/** Calls of the API: each has the token in its header, a time limit, and the API's form of an error. */

import { token as tokenIn } from "./lib/route.js";
import { lines } from "./lib/stream.js";

/** Time for an answer to begin, in milliseconds. */
const PATIENCE = 15_000;
const KEY = "divvy-token";

/** A call that the daemon, or the program before it, refused. */
export class Refused extends Error {
  /** @param {number} status @param {{ code?: string, message?: string, hint?: string }} error */
  constructor(status, error) {
    super(error.message || `the daemon refused the call (HTTP ${status})`);
    this.status = status;
    this.code = error.code ?? "";
    this.hint = error.hint ?? "";
  }
}

/** A call without an answer. */
export class Lost extends Error {}

let token = "";

/** Takes the token out of the address, so that no bookmark and no screenshot has it; else the one of this tab. */
export function takeToken() {
  const found = tokenIn(location.hash);
  if (found !== undefined) {
    setToken(found);
    history.replaceState(null, "", `${location.pathname}#/overview`);
    return true;
  }
  try {
    token = token || sessionStorage.getItem(KEY) || "";
  } catch {
    // A browser without storage asks for the token after a reload.
  }
  return false;
}

/** @param {string} text */
export function setToken(text) {
  token = text.trim();
  try {
    sessionStorage.setItem(KEY, token);
  } catch {
    // As above.
  }
}

export const hasToken = () => token !== "";

/**
 * @typedef {{ method?: string, body?: unknown, signal?: AbortSignal, patience?: number }} Options
 * @param {string} path
 * @param {Options} [options]
 * @returns {Promise<Response>}
 */
export async function call(path, { method = "GET", body, signal, patience = PATIENCE } = {}) {
  const abort = new AbortController();
  const end = () => abort.abort();
  signal?.addEventListener("abort", end);
  const timer = setTimeout(end, patience);
  /** @type {Record<string, string>} */
  const headers = { authorization: `Bearer ${token}` };
  if (body !== undefined) headers["content-type"] = "application/json";
  try {
    const text = body === undefined ? undefined : JSON.stringify(body);
    const answer = await fetch(path, { method, headers, body: text, signal: abort.signal, credentials: "omit" });
    if (!answer.ok && answer.status !== 304) throw await refused(answer);
    return answer;
  } catch (error) {
    if (error instanceof Refused || signal?.aborted) throw error;
    throw new Lost(abort.signal.aborted ? `no answer within ${patience / 1000} s` : "no connection");
  } finally {
    clearTimeout(timer);
    // A stream goes on after its headers, and ends with the caller's signal.
  }
}

/** @param {Response} answer */
async function refused(answer) {
  try {
    return new Refused(answer.status, (await answer.json()).error ?? {});
  } catch {
    return new Refused(answer.status, {});
  }
}

/** Answers with a list; brief jobs come as one document a line. @param {string} path @param {Options} [options] */
export async function list(path, options) {
  const answer = await call(path, options);
  const isLines = answer.headers.get("content-type")?.includes("ndjson");
  const items = isLines ? lines(await answer.text()) : (await answer.json())?.items;
  const total = Number(answer.headers.get("divvy-total"));
  return {
    items: /** @type {any[]} */ (items ?? []),
    total: Number.isFinite(total) ? total : 0,
    /** Rows on all pages: fewer than jobs where arrays are folded. */
    rows: Number(answer.headers.get("divvy-items") ?? total) || 0,
    next: answer.headers.get("divvy-next") ?? undefined,
  };
}

/** The first of a list. @param {string} path @param {Options} [options] */
export const one = async (path, options) => (await list(path, options)).items[0];

/**
 * The pieces of a stream as text, until it ends or `signal` aborts it.
 * @param {Response} answer @param {(piece: string, bytes: number) => void} take
 */
export async function pieces(answer, take) {
  const reader = answer.body?.getReader();
  if (!reader) return;
  const decoder = new TextDecoder();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    take(decoder.decode(value, { stream: true }), value.byteLength);
  }
}
