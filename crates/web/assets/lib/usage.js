/** GPU hours of users and projects as rows, and as a table for a file. */

import { isFigure } from "./format.js";

const HOUR_MS = 3_600_000;

/**
 * @typedef {{ name: string, jobs: number, held: number, used: number, idle: number, loaned: number, unknown: number,
 *   energy: number, estimated: number, capacity: number, due?: number, days: number[] }} Row
 * GPU time is in milliseconds of a whole GPU.
 */

/** @param {unknown} value */
const figure = (value) => (isFigure(value) ? value : 0);

/**
 * One row for each user or project, the largest first.
 * @param {any[]} totals Rows of `/v1/usage?by=KEY`.
 * @param {any[]} daily Rows of `/v1/usage?by=day,KEY`.
 * @param {"user" | "project"} key
 * @param {string[]} days
 * @returns {Row[]}
 */
export function rows(totals, daily, key, days) {
  const byDay = new Map();
  for (const row of daily) {
    const at = days.indexOf(row.day);
    const known = byDay.get(row[key] ?? null) ?? days.map(() => 0);
    if (at >= 0) known[at] += figure(row.allocated_gpu_ms);
    byDay.set(row[key] ?? null, known);
  }
  const one = (/** @type {any} */ row) => ({
    name: row[key] ?? "",
    jobs: figure(row.jobs),
    held: figure(row.allocated_gpu_ms),
    used: figure(row.used_gpu_ms),
    idle: figure(row.idle_gpu_ms),
    loaned: figure(row.loaned_gpu_ms),
    unknown: figure(row.unknown_gpu_ms),
    energy: figure(row.energy_joules),
    estimated: figure(row.energy_estimated_joules),
    capacity: figure(row.capacity_gpu_ms),
    days: byDay.get(row[key] ?? null) ?? days.map(() => 0),
  });
  const ofJobs = totals.filter((row) => row.idle !== true);
  return ofJobs.map(one).sort((a, b) => b.held - a.held || (a.name < b.name ? -1 : 1));
}

/**
 * What a quota is worth over a period: quota × time, in milliseconds.
 * @param {unknown} quota Thousandths.
 * @param {number} days
 */
export function due(quota, days) {
  return isFigure(quota) ? (quota * days * 24 * HOUR_MS) / 1000 : undefined;
}

/**
 * The days of a period, the last one today, in the reader's zone: `2026-11-26`.
 * @param {number} now
 * @param {number} count
 */
export function days(now, count) {
  const pad = (/** @type {number} */ n) => String(n).padStart(2, "0");
  return Array.from({ length: count }, (_, at) => {
    const date = new Date(now);
    date.setHours(12, 0, 0, 0);
    date.setDate(date.getDate() - (count - 1 - at));
    return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  });
}

/** The start of the first of these days, in RFC 3339. @param {string} day */
export function startOf(day) {
  const [year, month, date] = day.split("-").map(Number);
  return new Date(year, month - 1, date).toISOString();
}

/**
 * Rows as a table with hours, for a file.
 * @param {Row[]} rows
 * @param {"user" | "project"} key
 * @param {string[]} days
 */
export function sheet(rows, key, days) {
  const hours = (/** @type {number | undefined} */ ms) => (ms === undefined ? "" : Math.round(ms / 3600) / 1000);
  const names = [
    key,
    "jobs",
    "held_gpu_hours",
    "used_gpu_hours",
    "idle_gpu_hours",
    "loaned_gpu_hours",
    "unmeasured_gpu_hours",
    "due_gpu_hours",
    "energy_joules",
    ...days,
  ];
  return [
    names,
    ...rows.map((row) => [
      row.name,
      row.jobs,
      hours(row.held),
      hours(row.used),
      hours(row.idle),
      hours(row.loaned),
      hours(row.unknown),
      hours(row.due),
      row.energy,
      ...row.days.map(hours),
    ]),
  ];
}

/** Tables as CSV (RFC 4180), safe to open in a spreadsheet. */

/**
 * One field. A text that a spreadsheet would run as a formula gets an apostrophe before it: a user chooses its name.
 * @param {unknown} value
 */
export function field(value) {
  if (value === null || value === undefined || (typeof value === "number" && !Number.isFinite(value))) return "";
  let text = String(value);
  if (typeof value !== "number" && /^[\s\u0000]*[=+\-@|%\uFF1D\uFF0B\uFF0D\uFF20]/.test(text)) text = `'${text}`;
  if (typeof value !== "number" && /^[\t\r\n]/.test(text)) text = `'${text}`;
  return /[",;\r\n\t']/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** @param {readonly unknown[][]} rows The first one has the names of the columns. */
export function table(rows) {
  return rows.map((row) => `${row.map(field).join(",")}\r\n`).join("");
}
