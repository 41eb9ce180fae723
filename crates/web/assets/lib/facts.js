/** Everything about a job, in the names and the order of `divvy describe` (`crates/cli/src/render/describe.rs`). */

import {
  amount,
  clean,
  commandLine,
  count,
  elapsed,
  energy,
  fullTime,
  isFigure,
  label,
  memories,
  memory,
  NONE,
  seconds,
  share,
  state,
} from "./format.js";
import { labels as labelsOf } from "./board.js";
import { sizeFlag } from "./explain.js";

/** @param {any} slice @param {boolean} hasEnded */
function slice(slice, hasEnded) {
  const words = [
    `${share(slice.share)} of GPU ${slice.gpu_index ?? NONE}`,
    `limit ${memory(slice.memory_limit_bytes)}`,
  ];
  const enforcers = { mig: "the driver (a MIG instance)", driver: "the driver (its own limit)" };
  words.push(`enforced by ${enforcers[slice.enforcement] ?? "the limiter"}`);
  if (hasEnded) words.push(`peak ${memory(slice.memory_peak_bytes)}`);
  else {
    const by = count(slice.processes ?? 0, "process", "processes");
    words.push(`${memory(slice.memory_used_bytes)} by ${by}, peak so far ${memory(slice.memory_peak_bytes)}`);
  }
  if (slice.memory_target_bytes) {
    words.push(`shrinks to ${memory(slice.memory_target_bytes)} when it uses no more than that`);
  }
  if (slice.denials > 0) words.push(`${count(slice.denials, "refusal")}`);
  return words.join(" · ");
}

/** @param {any} job */
function options(job) {
  const words = [];
  if (job.priority) words.push(`priority ${job.priority}`);
  if (job.preemptible) words.push("preemptible");
  if (job.time_limit_s) words.push(`time limit ${seconds(job.time_limit_s)}`);
  for (const after of job.after ?? [])
    words.push(`after #${label(after.job, 40)}${after.ok ? " if it exits with 0" : ""}`);
  if (job.retries) words.push(`retries ${job.retries}`);
  if (job.runs_before) words.push(`run ${job.runs_before + 1}`);
  return words.join(", ");
}

/** @param {any} job */
function compute(job) {
  if ((job.slices ?? []).some((/** @type {any} */ one) => one.mig)) {
    return "the instance's own multiprocessors, without time slices";
  }
  const mode = job.compute === "none" ? "none: the driver's time-slicing" : clean(job.compute);
  const time = job.compute_time;
  if (!time) return job.state === "running" ? `${mode} · no other job on its GPUs` : mode;
  const parts = [mode, `share ${share(time.share_asked)}`];
  if (Number.isFinite(time.share_used)) parts.push(`${share(time.share_used)} used over 10 s`);
  if (time.throttled_ms > 0) parts.push(`waited ${(Math.ceil(time.throttled_ms / 100) / 10).toFixed(1)} s`);
  return parts.join(" · ");
}

/** @param {any} job @param {number} now */
function standing(job, now) {
  const since =
    { queued: job.submitted_at, starting: job.submitted_at, ended: job.ended_at }[
      /** @type {string} */ (job.state)
    ] ??
    job.started_at ??
    job.submitted_at;
  const words = `${state(job)}${job.state === "ended" ? "" : ` for ${elapsed(since, now)}`}`;
  if (job.state === "queued" && job.place) return `${words}, place ${job.place}`;
  return job.pid ? `${words}, pid ${job.pid}` : words;
}

/**
 * @param {any} job
 * @param {number} now
 * @returns {[string, string][]} Names and values; without those that say nothing.
 */
export function facts(job, now) {
  const time = (/** @type {unknown} */ at) => (at ? `${elapsed(at, now)} ago (${fullTime(at)})` : "");
  const text = (/** @type {unknown} */ value) => (value ? label(value, 2_000) : "");
  const labels = Object.entries(job.labels ?? {}).map(([name, value]) => `${name}=${value}`);
  /** @type {[string, string][]} */
  const all = [
    ["state", standing(job, now)],
    ["queue", text(job.queue)],
    ["request", amount(job.request)],
    ["compute", compute(job)],
    [
      "image",
      job.container ? text(commandLine([job.container.image ?? "", ...(job.container.arguments ?? [])])) : "",
    ],
    ["command", job.redacted ? "not shown: the job of another user" : text(commandLine(job.command ?? []))],
    ["folder", text(job.cwd)],
    ["user", text(job.user)],
    ["project", text(job.project)],
    ["options", options(job)],
    ["secrets", text((job.secrets ?? []).join(", "))],
    ["labels", text(labels.join(", "))],
    ["submitted", time(job.submitted_at)],
    ["started", time(job.started_at)],
    ["ended", time(job.ended_at)],
    ["stopped", text(job.end_detail)],
    ...(job.slices ?? []).map(
      (/** @type {any} */ one) =>
        /** @type {[string, string]} */ ([`slice ${labelsOf([one])}`, slice(one, job.state === "ended")]),
    ),
    ...(job.bypasses ?? []).map(
      (/** @type {any} */ one) =>
        /** @type {[string, string]} */ ([
          "bypass",
          `pid ${one.pid ?? NONE} (${label(one.program, 40)}) on GPU ${one.gpu_index ?? NONE}: ` + label(one.cause, 500),
        ]),
    ),
    ["limiter", job.limiter ? text([job.limiter.form, job.limiter.reason].filter(Boolean).join(": ")) : ""],
    ["output", job.output?.stdout ? text(job.output.stdout) : ""],
    ["held by", job.hold ? text(job.hold.by) : ""],
    ["reason", text(job.reason)],
  ];
  return all.filter(([, value]) => value !== "" && value !== "–");
}

/**
 * The use of an ended job in one line, as `divvy describe` says it (`crates/cli/src/render/efficiency.rs`). What is not
 * known is left out.
 * @param {any} job @param {any[]} advice Of earlier runs of the program. @param {any} [usage] The GPU time of the job.
 */
export function efficiency(job, advice, usage) {
  const slices = job.slices ?? [];
  const sum = (/** @type {string} */ name) =>
    slices.reduce((/** @type {number} */ all, /** @type {any} */ one) => all + (one[name] ?? 0), 0);
  const peak = sum("memory_peak_bytes");
  const drawn = energy(usage?.energy_joules, usage?.energy_estimated_joules);
  if (job.state !== "ended" || slices.length === 0 || peak === 0) return drawn;
  const parts = [`${memories([peak, sum("memory_limit_bytes")]).replace("/", " of ")} at its peak`];
  const measured = (usage?.allocated_gpu_ms ?? 0) - (usage?.unknown_gpu_ms ?? 0);
  if (measured > 0 && measured * 2 >= usage.allocated_gpu_ms) {
    const part = Math.floor((Math.max(0, usage.used_gpu_ms - usage.loaned_gpu_ms) * 100) / measured);
    parts.push(`${Math.min(100, part)} % of its compute time`);
  }
  if (drawn) parts.push(drawn);
  const isRefused = slices.some((/** @type {any} */ one) => one.denials > 0);
  const limit = Math.max(...slices.map((/** @type {any} */ one) => one.memory_limit_bytes));
  const next = advice.find((one) => one.gpus === slices.length && job.request?.kind !== "mig");
  const size = next?.memory_bytes;
  const isBetter = isFigure(size) && (isRefused ? size > limit : size < limit);
  const flag = isBetter ? sizeFlag(next.amount) : undefined;
  if (flag !== undefined) return `${parts.join(", ")}; next time: ${flag}`;
  return parts.join(", ") + (isRefused ? "; its limit refused memory, so its whole need is unknown" : "");
}

/** Results of `divvy doctor` and `divvy selftest`, with the sums that the commands print. */

/** The items of a list, or the list itself. @param {any} answer @returns {any[]} */
export function results(answer) {
  if (Array.isArray(answer)) return answer;
  return Array.isArray(answer?.items) ? answer.items : [];
}

/** @param {any[]} findings */
export function total(findings) {
  const of = (/** @type {string} */ status) => findings.filter((one) => one.status === status).length;
  const fails = of("fail");
  const words =
    fails === 0 ? "jobs can run here; test their limits with divvy selftest" : "jobs cannot run correctly here";
  return { text: `${of("ok")} ok, ${of("warn")} warn, ${fails} fail: ${words}`, isAlert: fails > 0 };
}

/** Results that fail a self-test. */
export const failures = new Set(["not_enforced", "differs", "failed"]);

/** @param {any} test */
export function sum(test) {
  const checks = test.checks ?? [];
  const of = (/** @type {string} */ result) =>
    checks.filter((/** @type {any} */ one) => one.result === result).length;
  const failed = checks.filter((/** @type {any} */ one) => failures.has(one.result)).length;
  const holds = test.passed ? "the limit holds" : "the limit does not hold";
  const passed = `${of("enforced")} enforced, ${of("agrees")} agree, ${of("not_available")} not available`;
  return `${passed}, ${failed} failed: ${holds}`;
}
