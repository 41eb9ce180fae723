/** Figures over time: answers of `GET /v1/history` on one grid of times, joined, thinned and stacked. */

import { isFigure } from "./format.js";

/** Ranges of the charts: seconds, the stored step that covers them, and seconds between two looks. */
export const RANGES = /** @type {Record<string, { name: string, seconds: number, step: number, look: number }>} */ ({
  "10m": { name: "10 min", seconds: 600, step: 1, look: 2 },
  "1h": { name: "1 h", seconds: 3600, step: 10, look: 10 },
  "6h": { name: "6 h", seconds: 21_600, step: 10, look: 20 },
  "24h": { name: "24 h", seconds: 86_400, step: 60, look: 60 },
  "7d": { name: "7 d", seconds: 604_800, step: 60, look: 300 },
});

/**
 * The range of a job's whole run, with the finest step that the daemon keeps for so long.
 * @param {any} job @param {number} now Seconds.
 * @returns {{ seconds: number, step: number, look: number, until: number }} `until`: the end of the run, or now.
 */
export function wholeRun(job, now) {
  const ended = Date.parse(job.ended_at) / 1000;
  const until = ended < now ? Math.ceil(ended) : now;
  const began = Date.parse(job.started_at) / 1000 || until;
  const { step, look } = [RANGES["10m"], RANGES["6h"]].find((one) => now - began <= one.seconds) ?? RANGES["7d"];
  // A margin of a twentieth, and a minute at least: one point is no curve.
  return { seconds: Math.max(60, Math.ceil((until - began) * 1.05)), step, look, until };
}

/** Most points that a chart draws. */
export const MOST_POINTS = 720;

/**
 * @typedef {{ from: number, step: number, values: Record<string, (number | null)[]> }} Curve
 * Times are seconds; a figure has one value a step.
 */

/** A curve from an answer. @param {any} history @returns {Curve} */
export function curve(history) {
  /** @type {Record<string, (number | null)[]>} */
  const values = {};
  for (const figure of history?.figures ?? []) values[figure.name] = figure.values ?? [];
  return { from: Math.floor(Date.parse(history?.from) / 1000) || 0, step: Number(history?.step_s) || 1, values };
}

/** Number of steps of a curve. @param {Curve} curve */
function length(curve) {
  return Math.max(0, ...Object.values(curve.values).map((values) => values.length));
}

/** Time after the last value, from which the next look asks. @param {Curve} curve */
export const end = (curve) => curve.from + length(curve) * curve.step;

/**
 * The curve with the values of a later look, and without those before `oldest`. Values of the later look count.
 * @param {Curve | undefined} known @param {Curve} news @param {number} oldest
 * @returns {Curve}
 */
export function joined(known, news, oldest) {
  if (!known || known.step !== news.step || news.from < known.from || news.from > end(known)) return news;
  const skip = Math.max(0, Math.floor((oldest - known.from) / known.step));
  const at = Math.max(0, (news.from - known.from) / known.step - skip);
  /** @type {Curve["values"]} */
  const values = {};
  for (const name of new Set([...Object.keys(known.values), ...Object.keys(news.values)])) {
    const old = (known.values[name] ?? []).slice(skip, skip + at);
    while (old.length < at) old.push(null);
    values[name] = [...old, ...(news.values[name] ?? [])];
  }
  return { from: known.from + skip * known.step, step: known.step, values };
}

/**
 * The times of a chart, in seconds: the starts of equal buckets that are a multiple of the step.
 * @param {number} until @param {{ seconds: number, step: number }} range
 */
export function grid(until, range) {
  const bucket = range.step * Math.max(1, Math.ceil(range.seconds / range.step / MOST_POINTS));
  const last = Math.floor(until / bucket) * bucket;
  const points = Math.floor(range.seconds / bucket);
  return { bucket, times: Array.from({ length: points }, (_, at) => last - (points - 1 - at) * bucket) };
}

/**
 * A figure on a grid: the mean of each bucket, `null` where nothing was measured.
 * @param {Curve | undefined} curve @param {string} name @param {{ bucket: number, times: number[] }} grid
 * @returns {(number | null)[]}
 */
export function on(curve, name, grid) {
  const values = curve?.values[name] ?? [];
  const [sums, counts] = [grid.times.map(() => 0), grid.times.map(() => 0)];
  const first = grid.times[0] ?? 0;
  values.forEach((value, at) => {
    if (!isFigure(value) || !curve) return;
    const bucket = Math.floor((curve.from + at * curve.step - first) / grid.bucket);
    if (bucket < 0 || bucket >= sums.length) return;
    sums[bucket] += value;
    counts[bucket] += 1;
  });
  return sums.map((sum, at) => (counts[at] > 0 ? sum / counts[at] : null));
}

/** A row in another unit. @param {(number | null)[]} row @param {number} unit */
export const scaled = (row, unit) => row.map((value) => (value === null ? null : value / unit));

/** The sum of several rows, point by point; `null` where none has a value. @param {(number | null)[][]} rows */
export function total(rows) {
  const points = Math.max(0, ...rows.map((row) => row.length));
  return Array.from({ length: points }, (_, at) => {
    const known = rows.map((row) => row[at]).filter(isFigure);
    return known.length > 0 ? known.reduce((all, one) => all + one, 0) : null;
  });
}

/**
 * What is left of a whole beside its parts, at least 0.
 * @param {(number | null)[]} whole
 * @param {(number | null)[][]} parts
 */
export function rest(whole, parts) {
  const known = total(parts);
  return whole.map((value, at) => (isFigure(value) ? Math.max(0, value - (known[at] ?? 0)) : null));
}

/**
 * Stacked rows: each the sum of itself and the rows before it. A row without a value counts 0 where another has one.
 * @param {(number | null)[][]} rows
 */
export function stacked(rows) {
  const any = total(rows);
  /** @type {(number | null)[]} */
  let below = any.map((value) => (value === null ? null : 0));
  return rows.map((row) => {
    below = below.map((sum, at) => (sum === null ? null : sum + (row[at] ?? 0)));
    return below;
  });
}

/**
 * Rows grouped by a key, in the order of the first of each group.
 * @template T
 * @param {{ key: T, row: (number | null)[] }[]} rows
 */
export function grouped(rows) {
  /** @type {Map<T, (number | null)[][]>} */
  const groups = new Map();
  for (const { key, row } of rows) groups.set(key, [...(groups.get(key) ?? []), row]);
  return [...groups].map(([key, members]) => ({ key, row: total(members) }));
}

/** Whether a row has any value above zero. @param {(number | null)[]} row */
export const isSeen = (row) => row.some((value) => value !== null && value > 0);

/**
 * Every n-th index, so that a table has at most so many rows; the last one is in it.
 * @param {number} points
 * @param {number} [most]
 */
export function sampled(points, most = 60) {
  const every = Math.max(1, Math.ceil(points / most));
  return Array.from({ length: points }, (_, at) => at).filter((at) => (points - 1 - at) % every === 0);
}
