/**
 * The stream of the board. A lost daemon leaves the last picture; attempts follow with a growing wait.
 *
 * A hidden page follows nothing: a browser has six connections for each server, shared by all of its pages.
 */

import { call, hasToken, Lost, one, pieces, Refused } from "./api.js";
import { applied, whole } from "./lib/board.js";
import { delay, Events } from "./lib/stream.js";
import { get, set } from "./store.js";

/** Silence after which the page asks whether the daemon still answers, in milliseconds. */
const SILENCE = 4_000;
/** Time that a hidden page keeps its stream. */
const HIDDEN = 20_000;

/** The hint where no program answers at all. */
const ENDED = "if `divvy web` has ended, start it again and open its new address";

let heard = 0;
/** The server of this page: `proxy` is `divvy web`. */
let via = "";
/** @type {(() => void) | undefined} */
let wake;

/** Ends a wait between two attempts. */
export const retryNow = () => wake?.();

/** @param {number} ms */
function pause(ms) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    wake = () => {
      clearTimeout(timer);
      resolve(undefined);
    };
  });
}

function untilVisible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    document.addEventListener("visibilitychange", () => resolve(undefined), { once: true });
  });
}

/** Follows the board for as long as the page lives. */
export async function follow() {
  for (let attempt = 0; ;) {
    await untilVisible();
    const before = heard;
    try {
      if (!hasToken()) throw new Refused(401, {});
      if (!get().session) {
        const found = await session();
        via = found.via ?? via;
        set({ session: found });
      }
      await stream();
      // A hidden page has ended the stream itself.
      if (document.hidden) continue;
      lose("the daemon closed the connection", "");
    } catch (error) {
      if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
        set({ needsToken: true, tokenError: hasToken() ? error.message : undefined, session: undefined });
        await pause(2 ** 31 - 1);
        continue;
      }
      const { message, hint = "" } = /** @type {Refused} */ (error);
      lose(message, error instanceof Lost && via !== "listener" ? ENDED : hint);
    }
    attempt = heard > before ? 0 : attempt + 1;
    await pause(delay(attempt, Math.random()));
  }
}

/**
 * @param {string} why
 * @param {string} hint
 */
function lose(why, hint) {
  const since = get().lost?.since ?? performance.now();
  set({ lost: { since, why, hint }, session: get().lost ? get().session : undefined });
}

/** Who calls, and what that role may do. Without a page's own answer, the daemon's. */
async function session() {
  try {
    return await (await call("/web/session")).json();
  } catch (error) {
    if (!(error instanceof Refused) || error.status !== 404) throw error;
    const node = await one("/v1/node");
    return { ...node?.caller, version: node?.version, actions: false };
  }
}

/** One stream, until it ends. */
async function stream() {
  const abort = new AbortController();
  const events = new Events();
  const begun = performance.now();
  let wasSilent = false;
  let hiddenAt = 0;
  const watch = setInterval(async () => {
    hiddenAt = document.hidden ? hiddenAt || performance.now() : 0;
    if (hiddenAt && performance.now() - hiddenAt > HIDDEN) return abort.abort();
    if (performance.now() - Math.max(begun, heard) < SILENCE || wasSilent) return;
    wasSilent = true;
    try {
      await call("/v1/board", { method: "HEAD", signal: abort.signal, patience: SILENCE });
      hear({});
    } catch {
      abort.abort();
    }
    wasSilent = false;
  }, 1000);
  try {
    const answer = await call("/v1/board?follow=true", { signal: abort.signal });
    await pieces(answer, (piece) => {
      for (const { kind, data } of events.take(piece)) take(kind, JSON.parse(data));
    });
  } catch (error) {
    if (!abort.signal.aborted) throw error;
    if (!document.hidden) throw new Error("the daemon does not answer");
  } finally {
    clearInterval(watch);
    abort.abort();
  }
}

/** @param {string} kind @param {any} news */
function take(kind, news) {
  const { board } = get();
  if (kind === "board") hear({ board: whole(news) });
  else if (kind === "change" && board) hear({ board: applied(board, news) });
}

/** @param {{ board?: any }} news */
function hear(news) {
  heard = performance.now();
  set({ ...news, at: heard, lost: undefined, needsToken: false });
}
