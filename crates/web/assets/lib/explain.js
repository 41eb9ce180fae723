/** Why a job waits, and what would start it, in the words of `divvy why` (`crates/cli/src/render/why.rs`). */

import {
  amount,
  clean,
  clock,
  commandLine,
  elapsed,
  exactMemory,
  instant,
  isFigure,
  label,
  memories,
  memory,
  seconds,
  short,
} from "./format.js";

/** Jobs that a sentence names. */
const MOST_NAMED = 8;

/** @param {string[]} ids */
function named(ids) {
  const more = ids.length - MOST_NAMED;
  return ids.slice(0, MOST_NAMED).join(", ") + (more > 0 ? ` and ${more} more` : "");
}

/** `~12m (by 13:10)`: the expected start, and the latest one. @param {any} job @param {number} now */
export function start(job, now) {
  const parts = [];
  if (instant(job.expected_start) !== undefined) parts.push(`~${short(job.expected_start, now)}`);
  if (instant(job.latest_start) !== undefined) parts.push(`(by ${clock(job.latest_start, now)})`);
  return parts.join(" ") || "–";
}

/** @param {unknown} expected @param {unknown} latest @param {number} now */
function starts(expected, latest, now) {
  const [soon, last] = [instant(expected), instant(latest)];
  const wait = (/** @type {number} */ at) => elapsed(now, at);
  const words = [];
  if (soon !== undefined && (last === undefined || soon < last)) words.push(`in about ${wait(soon)}`);
  if (last !== undefined) words.push(`in ${wait(last)} at the latest`);
  return words.length > 0 ? `${words.join(", ")}, if no other job is submitted` : undefined;
}

/** @param {any} holder @param {number} now */
function end(holder, now) {
  const words = [];
  const usual = instant(holder.usually_ends);
  if (holder.usual_run && usual !== undefined) {
    const so = usual > now ? `so in about ${elapsed(now, usual)}` : "already exceeded";
    words.push(`usually runs ${seconds(holder.usual_run.median_s)} (median of ${holder.usual_run.runs}), ${so}`);
  }
  const latest = instant(holder.ends_by);
  if (latest !== undefined) words.push(`in ${elapsed(now, latest)} at the latest`);
  return words.length > 0 ? words.join("; ") : undefined;
}

/** @param {any} why @param {number} now @returns {string[]} */
function ends(why, now) {
  const seen = new Set();
  const unknown = [];
  const lines = [];
  for (const holder of (why.gpus ?? []).flatMap((/** @type {any} */ gpu) => gpu.held_by ?? [])) {
    if (seen.has(holder.job)) continue;
    seen.add(holder.job);
    const words = end(holder, now);
    if (words) lines.push(`#${label(holder.job, 20)} ${words}`);
    else unknown.push(`#${label(holder.job, 20)}`);
  }
  if (unknown.length > 0) lines.push(`unknown for ${named(unknown)}: no time limit, no earlier runs`);
  return lines;
}

/** @param {any} why @param {number} now @returns {string[]} */
function allStarts(why, now) {
  const [expected, usual] = [instant(why.expected_start), instant(why.usual_start)];
  const lines = [];
  if (usual !== undefined && (expected === undefined || usual < expected)) {
    const ahead = "if no other job is submitted and the jobs ahead take their usual time";
    lines.push(`in about ${elapsed(now, usual)}, ${ahead}`);
  }
  const certain = starts(why.expected_start, why.latest_start, now);
  return certain ? [...lines, certain] : lines;
}

/**
 * The text with name and user of each holder, once. An older daemon names no users.
 * @param {string} text @param {any} gpu
 */
function withHolders(text, gpu) {
  const holders = gpu.held_by ?? [];
  const isNamed = holders.length > 0 && holders.every((/** @type {any} */ one) => one.user);
  let found = text;
  const others = isNamed ? [] : (gpu.holders ?? []).map(clean);
  for (const holder of isNamed ? holders : []) {
    const name = clean(`#${holder.job} ${holder.name} of ${holder.user}`);
    const number = new RegExp(`#${Number(holder.job)}(?![0-9])`);
    if (number.test(found)) found = found.replace(number, () => name);
    else others.push(`${name}, ${clean(`${holder.queue} ${holder.size}`)}${holder.reserved ? ", resuming" : ""}`);
  }
  return others.length > 0 ? `${found} (${others.join(", ")})` : found;
}

/**
 * The explanation as a sentence, facts with a name, and the changes that start the job now.
 * @param {any} why @param {number} now
 */
export function explained(why, now) {
  const place = why.place ? `, place ${why.place}` : "";
  const where = why.state === "queued" ? `waits in queue ${label(why.queue, 60)}${place}` : "does not wait";
  /** @type {[string, string][]} */
  const facts = [];
  for (const gpu of why.gpus ?? []) {
    const unmet = (gpu.unmet ?? []).length > 0 ? clean(gpu.unmet.join("; ")) : "would fit";
    facts.push([`GPU ${gpu.gpu_index}`, withHolders(unmet, gpu)]);
  }
  for (const line of ends(why, now)) facts.push(["ends", line]);
  for (const line of allStarts(why, now)) facts.push(["starts", line]);
  const behind = (why.behind ?? []).map((/** @type {string} */ id) => `#${label(id, 20)}`);
  if (behind.length > 0) facts.push(["behind", named(behind)]);
  if (why.note) facts.push(["note", label(why.note, 500)]);
  return { sentence: `#${label(why.job, 20)} ${where}: ${clean(why.summary)}`, facts, changes: changes(why) };
}

/** @param {any} why @returns {{ text: string, command?: string }[]} */
function changes(why) {
  const known = why.suggested_changes ?? [];
  if (known.length === 0 && why.reason_code === "held") {
    // The sentence names the user who holds it.
    const text = "it is held; after its release it waits for its turn";
    return [{ text, command: commandLine(["divvy", "release", String(why.job)]) }];
  }
  if (known.length === 0) {
    return (why.suggestions ?? []).map((/** @type {string} */ text) => ({ text: clean(text) }));
  }
  return known.map((/** @type {any} */ change) => ({
    text: clean(change.text),
    command: change.command?.length > 0 ? commandLine(change.command) : undefined,
  }));
}

/** Refused memory, in the words of `divvy oom` (`crates/cli/src/render/oom.rs`). */

const MIB = 2 ** 20;

/** @param {any} oom */
export function sentence(oom) {
  const records = oom.records ?? [];
  const { denials = 0 } = oom;
  if (denials === 0 && records.length === 0) return "No GPU memory was refused.";
  if (denials === 0) return "GPU memory was refused, but not by the limit.";
  return `The limit refused GPU memory ${denials === 1 ? "once" : `${denials} times`}.`;
}

/** The call asked for more than the GPU has, so no limit allows it. @param {any} record */
const exceedsGpu = (record) => record.cause === "gpu_full" && record.asked_bytes > record.limit_bytes;

/** The smallest limit that can be requested. @param {number} bytes */
export const requestable = (bytes) => exactMemory(Math.ceil(bytes / MIB) * MIB);

/** @param {any} record */
function asked(record) {
  if (!record.asked_bytes) return "memory";
  return exceedsGpu(record) ? "more than a whole GPU" : memory(record.asked_bytes);
}

/** @param {any} record */
function cause(record) {
  const slice = memories([record.used_bytes, record.limit_bytes]);
  const has = isFigure(record.gpu_free_bytes) && isFigure(record.gpu_total_bytes);
  const free = has ? memories([record.gpu_free_bytes, record.gpu_total_bytes]) : "";
  switch (record.cause) {
    case "slice_full":
      return `the slice was full: ${slice} in use${free && `; the GPU had ${free} free`}`;
    case "gpu_full":
      if (exceedsGpu(record)) return "the driver refused it: it is larger than the GPU, so no limit allows it";
      return `the GPU was full${free && `: ${free} free`}; the slice had room: ${slice} in use`;
    case "not_in_slice":
      return "the GPU is not one of the job's";
    default:
      return "the driver refused it; the limit does not count this kind of memory";
  }
}

/** @param {any} live */
function allocation(live) {
  const size = `${memory(live.bytes)} ${clean(live.kind)}`;
  return live.count === 1 ? size : `${live.count} × ${size}`;
}

/** One refusal: a heading, and facts with a name. @param {any} record @param {number} now */
export function refusal(record, now) {
  const gpu = isFigure(record.gpu_index) ? ` on GPU ${record.gpu_index}` : "";
  const process = `pid ${record.pid} ${label(record.program, 40)}`;
  const title = `${process}: ${label(record.api, 60)} requested ${asked(record)}${gpu}`;
  /** @type {[string, string][]} */
  const facts = [
    ["when", `${elapsed(record.at, now)} ago`],
    ["cause", cause(record)],
  ];
  const peers = record.peers ?? [];
  if (isFigure(record.gpu_index)) {
    const users = [`this process ${memory(record.own_bytes)}`];
    for (const peer of peers) users.push(`pid ${peer.pid} ${memory(peer.used_bytes)}`);
    const unnamed = (record.peer_count ?? 0) - peers.length;
    if (unnamed > 0) users.push(`${unnamed} more processes`);
    if (record.unaccounted_bytes > 0) users.push(`without a known process ${memory(record.unaccounted_bytes)}`);
    facts.push(["used by", users.join(", ")]);
  }
  const largest = record.largest ?? [];
  if (largest.length > 0) {
    const named = largest.reduce((/** @type {number} */ all, /** @type {any} */ live) => all + live.count, 0);
    const rest = (record.allocations ?? 0) - named;
    facts.push(["holding", [...largest.map(allocation), ...(rest > 0 ? [`${rest} smaller`] : [])].join(", ")]);
  }
  if (isFigure(record.sufficient_limit_bytes)) {
    facts.push(["needs", `--gpu-memory ${requestable(record.sufficient_limit_bytes)}, or more`]);
  }
  if (record.skipped > 0) {
    const times = record.skipped === 1 ? "once" : `${record.skipped} times`;
    facts.push(["before", `refused ${times} without a record`]);
  }
  return { key: record.number, title, facts };
}

/**
 * The smallest limit under which each refused call passes, in bytes. What the program requests after them is not known.
 * @param {any} oom
 * @returns {number | undefined}
 */
export function needed(oom) {
  const limits = (oom.records ?? []).map((/** @type {any} */ one) => one.sufficient_limit_bytes).filter(isFigure);
  return limits.length > 0 ? Math.max(...limits) : undefined;
}

/** The flag of a size: `--gpu-memory 40960MiB`, `-g 2x0.5`. @param {any} size An `Amount`. */
export function sizeFlag(size) {
  if (!size) return undefined;
  return `${size.kind === "memory" ? "--gpu-memory" : "-g"} ${amount(size)}`;
}

/** What an advice says beside its figures. @param {any} advice */
export function reason(advice) {
  const { runs, denied_runs: denied } = advice;
  const [had, ask] = [advice.memory_limit_bytes, advice.memory_bytes];
  const refused = `${denied} of ${runs} runs were refused memory`;
  if (!isFigure(ask)) return `${refused}, so their whole need is unknown`;
  const change = had === ask ? "unchanged" : had < ask ? `${memory(ask - had)} more` : `${memory(had - ask)} less`;
  return `${change}${advice.amount ? "" : ", but no GPU here has so much"}; ${denied === 0 ? "no run was refused memory" : refused}`;
}
