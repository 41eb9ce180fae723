/** What the whole page knows, and the hooks by which components read it and ask the daemon. */

import { useEffect, useRef, useState } from "./vendor/preact.js";
import { Palette } from "./lib/board.js";

/**
 * @typedef {{ since: number, why: string, hint: string }} Loss
 * @typedef {{ board?: any, at: number, lost?: Loss, session?: import("./lib/actions.js").Session & { version?: string,
 *   via?: string }, node?: any, needsToken: boolean, tokenError?: string, asked?: import("./lib/actions.js").Action,
 *   said: string, theme: string }} State
 */

/** @type {State} */
let state = { at: 0, needsToken: false, said: "", theme: "auto" };

/** @type {Set<() => void>} */
const listeners = new Set();

/** @returns {State} */
export const get = () => state;

/** @param {Partial<State>} change */
export function set(change) {
  state = { ...state, ...change };
  for (const listener of listeners) listener();
}

/**
 * A part of the state; the component is drawn again when it changes.
 * @template T
 * @param {(state: State) => T} select
 * @returns {T}
 */
export function useStore(select) {
  const [value, setValue] = useState(() => select(state));
  useEffect(() => {
    const look = () => setValue(() => select(state));
    look();
    listeners.add(look);
    return () => void listeners.delete(look);
  }, []);
  return value;
}

/** Colours of jobs and users, the same on every page. */
export const palette = new Palette();

/** Says a sentence to screen readers. @param {string} sentence */
export function say(sentence) {
  // A text that does not change is not announced again.
  set({ said: get().said === sentence ? `${sentence}\u00a0` : sentence });
}

/** The time, each second while the page is visible. @returns {number} Milliseconds. */
export function useNow() {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    const timer = setInterval(() => {
      if (!document.hidden) setNow(Date.now());
    }, 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

/**
 * The answer to a question, with the last good one while a new one is on its way.
 * @template T
 * @param {unknown} key The question asks again when this changes; `undefined` asks nothing.
 * @param {(signal: AbortSignal, last: T | undefined) => Promise<T>} ask
 * @param {{ every?: number, on?: unknown, least?: number }} [when] `every`: seconds between two looks. `on`: asks again
 *   when this value changes, at most each `least` seconds.
 * @returns {{ data?: T, error?: any, isAsking: boolean, again: () => void }}
 */
export function useAnswer(key, ask, { every = 0, on, least = 5 } = {}) {
  const [answer, setAnswer] = useState(/** @type {{ key?: unknown, data?: T, error?: any }} */ ({}));
  const [isAsking, setAsking] = useState(false);
  const [turn, setTurn] = useState(0);
  const isLost = useStore((state) => state.lost !== undefined);
  const last = useRef({
    key: /** @type {unknown} */ (undefined),
    data: /** @type {T | undefined} */ (undefined),
    at: 0,
    isBusy: false,
  });
  const again = () => setTurn((turn) => turn + 1);
  // An answer that takes longer than the time between two looks is not asked for twice.
  const look = () => {
    if (!document.hidden && !last.current.isBusy) again();
  };

  useEffect(() => {
    if (key === undefined || isLost) return undefined;
    const abort = new AbortController();
    const known = last.current.key === key ? last.current.data : undefined;
    last.current = { key, data: known, at: Date.now(), isBusy: true };
    setAsking(true);
    ask(abort.signal, known).then(
      (data) => {
        if (abort.signal.aborted) return;
        Object.assign(last.current, { data, isBusy: false });
        setAnswer({ key, data });
        setAsking(false);
      },
      (error) => {
        if (abort.signal.aborted) return;
        last.current.isBusy = false;
        setAnswer({ key, data: known, error });
        setAsking(false);
      },
    );
    return () => abort.abort();
  }, [key, turn, isLost]);

  useEffect(() => {
    if (every <= 0 || key === undefined) return undefined;
    const timer = setInterval(look, every * 1000);
    return () => clearInterval(timer);
  }, [key, every]);

  const first = useRef(on);
  useEffect(() => {
    if (on === first.current || key === undefined) return undefined;
    first.current = on;
    const wait = Math.max(0, last.current.at + least * 1000 - Date.now());
    const timer = setTimeout(() => !document.hidden && again(), wait);
    return () => clearTimeout(timer);
  }, [key, on]);

  const isOfKey = answer.key === key;
  // The line of a lost daemon says the same.
  const error = isOfKey && !isLost ? answer.error : undefined;
  return { data: isOfKey ? answer.data : undefined, error, isAsking, again };
}
