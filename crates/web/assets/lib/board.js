/**
 * The board: one picture of the node, and how a change of the stream goes into it
 * (`crates/api/src/v1/board.rs`, `Board::apply`).
 */

import { clean, clock, gib, isFigure, label, percent } from "./format.js";

/** @param {any[]} all @param {any[]} changed @param {Set<any>} gone @param {(one: any) => number} key */
function merged(all, changed, gone, key) {
  if (changed.length === 0 && gone.size === 0) return all;
  const replaced = new Set(changed.map(key));
  const kept = all.filter((one) => !replaced.has(key(one)) && !gone.has(key(one)));
  return [...kept, ...changed].sort((one, other) => key(one) - key(other));
}

/** @param {unknown} list @returns {any[]} */
const listed = (list) => (Array.isArray(list) ? list : []);

const number = (/** @type {any} */ job) => Number(job.id) || 0;
const index = (/** @type {any} */ gpu) => Number(gpu.index) || 0;

/** A board with every list that the page reads, whatever the daemon left out. @param {any} board */
export function whole(board) {
  return {
    ...board,
    gpus: listed(board?.gpus),
    jobs: listed(board?.jobs),
    waiting: { count: 0, ...board?.waiting, first: listed(board?.waiting?.first) },
    queues: listed(board?.queues),
    users: listed(board?.users),
    projects: listed(board?.projects),
  };
}

/** The board after a change. @param {any} board @param {any} change */
export function applied(board, change) {
  const goneJobs = new Set(listed(change.jobs_gone).map(Number));
  const goneGpus = new Set(listed(change.gpus_gone).map(Number));
  return whole({
    ...board,
    changed_at: change.changed_at,
    last_event: change.last_event,
    gpus: merged(board.gpus, listed(change.gpus), goneGpus, index),
    jobs: merged(board.jobs, listed(change.jobs), goneJobs, number),
    waiting: change.waiting ?? board.waiting,
    queues: change.queues ?? board.queues,
    users: change.users ?? board.users,
    projects: change.projects ?? board.projects,
  });
}

/**
 * The slices on a GPU with their jobs, in the order of the jobs.
 * @param {any} board @param {number} gpu @returns {{ job: any, slice: any }[]}
 */
export function slicesOn(board, gpu) {
  return board.jobs.flatMap((/** @type {any} */ job) =>
    listed(job.slices)
      .filter((slice) => slice.gpu === gpu)
      .map((slice) => ({ job, slice })),
  );
}

/** Sum of a figure over the slices of a job. @param {any} job @param {(slice: any) => number | undefined} figure */
export function sum(job, figure) {
  return listed(job.slices).reduce((total, slice) => total + (Number(figure(slice)) || 0), 0);
}

/** Largest use of a slice so far, in bytes. @param {any} slice @returns {number} */
export const peak = (slice) => slice.peak_bytes ?? slice.memory_peak_bytes ?? slice.used_bytes;

/** GPU time that a job used, in thousandths; `undefined` if none is measured. @param {any} job */
export function shareUsed(job) {
  const used = listed(job.slices)
    .map((slice) => slice.share_used)
    .filter((one) => Number.isFinite(one));
  return used.length > 0 ? used.reduce((total, one) => total + one, 0) : undefined;
}

/** The handle of a job alone: its number, or `12_3`. @param {any} job @returns {string} */
export function reference(job) {
  if (typeof job.task === "string") return job.task;
  return job.array ? `${job.array.array}_${job.array.index}` : String(job.id);
}

/**
 * Reference and name of a row, which may stand for the pending tasks of an array: `12_[2-39]` and `sweep`.
 * @param {any} job
 */
export function folded(job) {
  const one = { reference: reference(job), name: job.name };
  if (!job.folded) return one;
  return {
    reference: `${one.reference.replace(/_[^_]*$/, "")}_[${clean(job.folded.indices)}]`,
    name: String(job.name ?? "").replace(/\[[^[]*\]$/, ""),
  };
}

/** Thousandths of a GPU that jobs hold, on all GPUs. @param {any} board */
export function allocated(board) {
  return board.gpus.reduce((/** @type {number} */ all, /** @type {any} */ gpu) => all + (Number(gpu.share) || 0), 0);
}

/** Running jobs as rows: notes, order and filter, in the words of `divvy top` (`crates/cli/src/top`). */

/**
 * Labels of slices as screens show them (`show_labels` in `crates/core/src/model/slice.rs`): `gpu2,3` for two whole
 * GPUs, `gpu1:0.25c` for the slice `gpu1.25c`.
 * @param {any[]} slices
 */
export function labels(slices) {
  let wasWhole = false;
  const shown = slices.map((slice) => {
    const [text, whole] = [String(slice.label ?? ""), /^gpu(\d+)$/.exec(slice.label)];
    const number = wasWhole && whole ? whole[1] : text.replace(/^gpu(\d+)\.(?!.*@)/, "gpu$1:0.");
    wasWhole = whole !== null;
    return number;
  });
  return label(shown.join(","), 80);
}

/** @param {any} job */
export const place = (job) => labels(listed(job.slices));

/** @param {any} job */
export const used = (job) =>
  gib(
    sum(job, (slice) => slice.used_bytes),
    sum(job, (slice) => slice.limit_bytes),
  );
/** @param {any} job */
export const peaks = (job) => gib(sum(job, peak));
/** GPU time used and held, in percent of a GPU: `27/50`. @param {any} job */
export const compute = (job) => `${percent(shareUsed(job))}/${percent(sum(job, (slice) => slice.share))}`;
/** @param {any} job */
export const mode = (job) => label((job.compute ?? "fair").replace("=", " "), 20);

/**
 * What there is to say about a job, the most important first. `isAlert`: it needs attention.
 * @param {any} job @param {number} now
 */
export function note(job, now) {
  const notes = [];
  if (job.bypass) notes.push("! bypass");
  if (job.denials > 0) notes.push(`! refused ${job.denials}×`);
  const isAlert = notes.length > 0;
  if (job.suspended) notes.push("suspended");
  else if (job.parked) notes.push("parked");
  else if (job.state === "starting" || job.state === "stopping") notes.push(job.state);
  const mismatches = (job.slices ?? []).map((/** @type {any} */ slice) => slice.mismatch_bytes).filter(isFigure);
  if (mismatches.length > 0) {
    const largest = Math.max(...mismatches.map(Math.abs));
    notes.push(`mismatch ${gib(largest)} GiB`);
  }
  if (job.ends_by) notes.push(`until ${clock(job.ends_by, now)}`);
  return { text: notes.join(", "), isAlert };
}

const text = (/** @type {unknown} */ value) => String(value ?? "");

/** Keys of the order of running jobs. The largest figure comes first, as in `divvy top`. */
export const ORDERS = /** @type {Record<string, (job: any) => number | string>} */ ({
  id: (job) => Number(job.id) || 0,
  user: (job) => text(job.user),
  name: (job) => text(job.name),
  queue: (job) => text(job.queue),
  on: (job) => job.slices?.[0]?.gpu ?? Infinity,
  memory: (job) => -sum(job, (slice) => slice.used_bytes),
  peak: (job) => -sum(job, peak),
  compute: (job) => -(shareUsed(job) ?? -1),
  since: (job) => text(job.since),
});

/** @param {any[]} jobs @param {string} by @param {boolean} isReversed */
export function sorted(jobs, by, isReversed) {
  const key = ORDERS[by] ?? ORDERS.id;
  const compare = (/** @type {any} */ one, /** @type {any} */ other) => {
    const [a, b] = [key(one), key(other)];
    return a < b ? -1 : a > b ? 1 : (Number(one.id) || 0) - (Number(other.id) || 0);
  };
  return [...jobs].sort((one, other) => (isReversed ? compare(other, one) : compare(one, other)));
}

/** Jobs with a text in number, name, user, queue or project. @param {any[]} jobs @param {string} wanted */
export function matching(jobs, wanted) {
  const needle = wanted.trim().toLowerCase();
  if (needle === "") return jobs;
  return jobs.filter((job) =>
    [reference(job), job.name, job.user, job.queue ?? "default", job.project].some((field) =>
      text(field).toLowerCase().includes(needle),
    ),
  );
}

/**
 * Which colour and pattern a job or a user has: eight of each, in 24 pairs. A key keeps its pair while the page lives.
 * The classes `c0` to `c23` of `style.css` have the same pairs.
 */

export const COLOURS = 24;
/** @param {number} pair */
export const hue = (pair) => pair % 8;
/** @param {number} pair */
export const stroke = (pair) => (pair + Math.floor(pair / 8)) % 8;
/** Keys that are remembered; the oldest go first. */
const MOST = 2_000;

export class Palette {
  /** @type {Map<string, number>} */
  #known = new Map();

  /** @param {string} key @returns {number} 0 to 23. */
  of(key) {
    const known = this.#known.get(key);
    if (known !== undefined) return known;
    const wanted = preferred(key);
    const recent = [...this.#known.values()].slice(-(COLOURS - 1));
    const free = Array.from({ length: COLOURS }, (_, step) => (wanted + step) % COLOURS);
    const colour = free.find((one) => !recent.includes(one)) ?? wanted;
    this.#known.set(key, colour);
    if (this.#known.size > MOST) this.#known.delete([...this.#known.keys()][0]);
    return colour;
  }

  /**
   * Colours of the keys of one chart, at most 24: none comes twice.
   * @param {string[]} keys
   * @returns {number[]}
   */
  distinct(keys) {
    const taken = new Set();
    return keys.map((key) => {
      let colour = this.of(key);
      for (let step = 0; step < COLOURS && taken.has(colour); step += 1) colour = (colour + 1) % COLOURS;
      taken.add(colour);
      return colour;
    });
  }
}

/** @param {string} key */
function preferred(key) {
  const number = /^job:(\d+)/.exec(key);
  if (number) return Number(number[1]) % COLOURS;
  let hash = 0;
  for (const char of key) hash = (hash * 31 + (char.codePointAt(0) ?? 0)) % 9973;
  return hash % COLOURS;
}
