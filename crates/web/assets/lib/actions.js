/**
 * What a user may do to a job: the command line that does the same, the call, and the reason why it is off.
 *
 * @typedef {{ verb: string, title: string, command: string[], path: string, body?: unknown, method?: string,
 *   detail?: string, onDone?: () => void }} Action
 * @typedef {{ user?: string, role?: string, actions?: boolean, why_no_actions?: string | null,
 *   may?: Record<string, boolean>, may_others?: Record<string, boolean> }} Session
 */

import { reference } from "./board.js";
import { commandLine, isParked } from "./format.js";

/** @param {string} job @param {string} call */
const path = (job, call) => `/v1/jobs/${encodeURIComponent(job)}/${call}`;

/**
 * @param {string} verb
 * @param {string} title
 * @param {string} job
 * @param {{ call?: string, words?: string[], body?: unknown, detail?: string }} [more]
 */
function action(verb, title, job, { call = verb, words = [], body, detail } = {}) {
  return { verb, title, command: ["divvy", verb, job, ...words], path: path(job, call), body, detail };
}

export const cancel = (/** @type {string} */ job) =>
  action("cancel", "Cancel the job", job, { detail: "The daemon stops it, or takes it out of its queue." });
export const suspend = (/** @type {string} */ job) =>
  action("suspend", "Suspend the job", job, { body: {}, detail: "All its processes stop. It keeps its memory." });
export const resume = (/** @type {string} */ job) => action("resume", "Resume the job", job);
export const wake = (/** @type {string} */ job) =>
  action("wake", "Wake the job", job, { detail: "Its GPU memory returns as soon as there is room." });
export const hold = (/** @type {string} */ job) =>
  action("hold", "Hold the job", job, { detail: "It waits, and later jobs pass it." });
export const release = (/** @type {string} */ job) => action("release", "Release the job", job);
export const requeue = (/** @type {string} */ job) =>
  action("requeue", "Requeue the job", job, { detail: "The daemon stops it, and it waits again." });
export const top = (/** @type {string} */ job) =>
  action("move", "Move to the top", job, { call: "change", words: ["--top"], body: { top: true } });
export const move = (/** @type {string} */ job, /** @type {string} */ queue) =>
  action("move", `Move to queue ${queue}`, job, { call: "change", words: ["-q", queue], body: { queue } });

const UNITS = /** @type {Record<string, number>} */ ({ k: 10, m: 20, g: 30, t: 40 });

/** `4G`, `1.5GiB` in bytes; `undefined` if it is no size. @param {string} text */
export function bytes(text) {
  const found = /^(\d+(?:\.\d+)?) ?([kmgt])(?:i|ib)?$/i.exec(text.trim());
  if (!found) return undefined;
  const size = Number(found[1]) * 2 ** UNITS[found[2].toLowerCase()];
  return Number.isSafeInteger(size) && size > 0 ? size : undefined;
}

/**
 * A resize from what a user typed: `12G`, `0.5`, `2`, `fair=0.25`.
 * @param {string} job @param {string} typed @returns {Action | string} The action, or what is wrong.
 */
export function resize(job, typed) {
  const text = typed.trim();
  const as = (/** @type {string} */ flag, /** @type {unknown} */ body) =>
    action("resize", "Resize the job", job, { words: [flag, text], body });
  if (/^(fair|strict|none)(=(0\.\d{1,3}|1(\.0{1,3})?))?$/.test(text)) return as("--compute", { compute: text });
  const size = bytes(text);
  if (size !== undefined) return as("--gpu-memory", { amount: { kind: "memory", bytes: size } });
  if (/^0\.\d{1,3}$/.test(text) && Number(text) > 0) {
    return as("-g", { amount: { kind: "share", thousandths: Math.round(Number(text) * 1000) } });
  }
  if (/^[1-9]\d{0,3}$/.test(text)) return as("-g", { amount: { kind: "whole", count: Number(text) } });
  const shares = /^([1-9]\d{0,2})x(0\.\d{1,3})$/.exec(text);
  if (shares && Number(shares[2]) > 0) {
    const thousandths = Math.round(Number(shares[2]) * 1000);
    return as("-g", { amount: { kind: "shares", count: Number(shares[1]), thousandths } });
  }
  return `${text || "nothing"} is no size: use 0.5, 12G, or fair=0.25`;
}

/**
 * The actions on a job, in the order of their buttons.
 * @param {any} job A job of the API or of the board.
 * @returns {Action[]}
 */
export function actionsFor(job) {
  const id = reference(job);
  const state = job.state ?? "running";
  if (state === "ended") return [];
  if (state === "queued") {
    const isHeld = Boolean(job.hold) || job.reason_code === "held";
    return [top(id), isHeld ? release(id) : hold(id), cancel(id)];
  }
  if (state === "stopping") return [cancel(id)];
  const back = job.suspended ? resume(id) : suspend(id);
  return [isParked(job) ? wake(id) : back, requeue(id), cancel(id)];
}

/** A hint in pieces: those at odd places are commands. @param {string} hint */
export const commands = (hint) => (hint.startsWith("divvy ") ? ["", hint] : hint.split("`"));

/** The command line of an action. @param {Action} action */
export const command = (action) => commandLine(action.command);

/**
 * Why an action is off, in a sentence; `undefined` if the daemon decides.
 * @param {string} verb @param {Session | undefined} session @param {string} [owner] The user of the job.
 */
export function refusal(verb, session, owner) {
  if (!session) return "the page does not know your role yet";
  if (!session.actions) return session.why_no_actions || "start `divvy web --allow-actions` to change jobs here";
  if (session.may?.[verb] === false) return `the role ${session.role || "viewer"} may not ${verb} jobs`;
  const isOther = owner !== undefined && session.user !== undefined && owner !== session.user;
  if (isOther && session.may_others?.[verb] === false) return `only ${owner} and operators may ${verb} this job`;
  return undefined;
}
