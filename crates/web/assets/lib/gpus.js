/** The parts of a GPU's bars, in percent of the whole: memory by holder, compute time by holder, MIG by slot. */

import { reference, slicesOn } from "./board.js";
import { gib, isFigure, label, memory, share } from "./format.js";

/**
 * @typedef {"used" | "limit" | "outside" | "elsewhere" | "free"} Kind
 * @typedef {{ kind: Kind, width: number, key?: string, job?: string }} Part
 * @typedef {{ key: string, name: string, figures: string, job?: string, isAlert?: boolean }} Holder
 */

/** Percent with two decimals, between 0 and 100. @param {number} part @param {number} whole */
function width(part, whole) {
  if (!isFigure(part) || !isFigure(whole) || whole <= 0) return 0;
  return Math.round(Math.min(1, Math.max(0, part / whole)) * 10_000) / 100;
}

/** Parts that add up to at most 100, with the free rest. @param {Part[]} parts @returns {Part[]} */
function filled(parts) {
  const all = parts.reduce((sum, part) => sum + part.width, 0);
  const scale = all > 100 ? 100 / all : 1;
  const fitted = parts.map((part) => ({ ...part, width: part.width * scale })).filter((part) => part.width > 0);
  return all < 100 ? [...fitted, { kind: "free", width: 100 - all }] : fitted;
}

/**
 * The holders of a GPU: jobs, other daemons, processes outside Divvy.
 * @param {any} board
 * @param {any} gpu
 * @returns {Holder[]}
 */
export function holders(board, gpu) {
  /** @type {Holder[]} */
  const all = slicesOn(board, gpu.index).map(({ job, slice }) => ({
    key: `job:${job.id}`,
    job: reference(job),
    name: `#${reference(job)} ${label(job.name, 40)} of ${label(job.user, 40)}`,
    figures: `${gib(slice.used_bytes, slice.limit_bytes)} GiB`,
  }));
  for (const held of gpu.held_elsewhere ?? []) {
    all.push({
      key: `elsewhere:${held.holder}`,
      name: label(held.holder, 60),
      figures: `${share(held.share)}, ${gib(held.memory_bytes)} GiB`,
    });
  }
  if (gpu.unmanaged_bytes > 0) {
    const who = (gpu.processes ?? []).map(
      (/** @type {any} */ one) => `${label(one.program ?? "?", 40)} of ${label(one.user ?? "?", 40)}`,
    );
    const of = who.length > 0 ? `: ${who.join(", ")}` : "";
    all.push({ key: "outside", isAlert: true, name: `outside${of}`, figures: `${gib(gpu.unmanaged_bytes)} GiB` });
  }
  return all;
}

/** @param {any} board @param {any} gpu @returns {Part[]} */
export function memoryParts(board, gpu) {
  /** @type {Part[]} */
  const parts = slicesOn(board, gpu.index).flatMap(({ job, slice }) => {
    const used = Math.min(slice.used_bytes, slice.limit_bytes);
    const of = { key: `job:${job.id}`, job: reference(job) };
    return [
      { kind: /** @type {const} */ ("used"), width: width(used, gpu.usable_bytes), ...of },
      { kind: /** @type {const} */ ("limit"), width: width(slice.limit_bytes - used, gpu.usable_bytes), ...of },
    ];
  });
  for (const held of gpu.held_elsewhere ?? []) {
    parts.push({ kind: "elsewhere", width: width(held.memory_bytes, gpu.usable_bytes) });
  }
  parts.push({ kind: "outside", width: width(gpu.unmanaged_bytes ?? 0, gpu.usable_bytes) });
  return filled(parts);
}

/**
 * Compute time: each job's share, and what it used of it in the last 10 s.
 * @param {any} board
 * @param {any} gpu
 * @returns {Part[]}
 */
export function computeParts(board, gpu) {
  /** @type {Part[]} */
  const parts = slicesOn(board, gpu.index).flatMap(({ job, slice }) => {
    const used = Math.min(slice.share_used ?? 0, slice.share);
    const of = { key: `job:${job.id}`, job: reference(job) };
    return [
      { kind: /** @type {const} */ ("used"), width: width(used, 1000), ...of },
      { kind: /** @type {const} */ ("limit"), width: width(slice.share - used, 1000), ...of },
    ];
  });
  for (const held of gpu.held_elsewhere ?? []) parts.push({ kind: "elsewhere", width: width(held.share, 1000) });
  return filled(parts);
}

/**
 * @typedef {{ start: number, size: number, state: string, profile: string, job?: string, used?: number }} Slot
 * A place of a GPU in MIG mode: an instance, or a free slot (`state` is `free`).
 */

/**
 * The slots of a GPU in order, without gaps. Instances that overlap or leave the GPU are cut.
 * @param {{ slots: number, instances: any[] } | null | undefined} mig @returns {Slot[]}
 */
export function slots(mig) {
  const count = Math.min(64, Math.max(0, Number(mig?.slots) || 0));
  const instances = [...(mig?.instances ?? [])].sort((one, other) => one.start - other.start);
  /** @type {Slot[]} */
  const all = [];
  let next = 0;
  const gap = (/** @type {number} */ until) => {
    for (; next < until; next += 1) all.push({ start: next, size: 1, state: "free", profile: "" });
  };
  for (const one of instances) {
    gap(Math.min(one.start, count));
    const size = Math.min(one.size, count - next);
    if (one.start < next || size <= 0) continue;
    all.push({ start: next, size, state: one.state, profile: label(one.profile, 40), job: one.job });
    next += size;
  }
  gap(count);
  return all;
}

/** States of an instance in the words of `divvy gpus`. @param {string} state */
export function slotState(state) {
  return state === "in_use" ? "held" : state.replaceAll("_", " ");
}

/** The largest job that gets room on a GPU now: `-g 0.25 or --gpu-memory 19.8 GiB`. @param {any} gpu */
export function room(gpu) {
  const { share: part = 0, memory_bytes: bytes = 0 } = gpu.available ?? {};
  const words = [];
  if (part > 0) words.push(`-g ${share(part)}`);
  if (bytes > 0) words.push(`--gpu-memory ${(Math.floor((bytes * 10) / 2 ** 30) / 10).toFixed(1)}G`);
  return words.length > 0 ? words.join(" or ") : "none";
}

/** MIG: the picture of a GPU's slots from `GET /v1/gpus`, and what a plan adds to it. */

/** Most instances of a plan: as many as slots of 16 GPUs. */
export const MOST = 128;

/** GPUs in MIG mode in the form of the board's slots. @param {any[]} gpus */
export function pictures(gpus) {
  return gpus
    .filter((gpu) => gpu.mig)
    .map((gpu) => ({
      index: gpu.index,
      model: gpu.model,
      profiles: gpu.mig.profiles ?? [],
      mig: {
        slots: gpu.mig.memory_slices,
        instances: (gpu.mig.instances ?? []).map((/** @type {any} */ one) => ({
          profile: one.profile,
          start: one.start,
          size: one.memory_slices,
          state: one.state,
          job: one.job,
        })),
      },
    }));
}

/** Every profile of these GPUs once, the smallest first, with the number that jobs get now. @param {any[]} gpus */
export function profiles(gpus) {
  const all = new Map();
  for (const { profiles } of pictures(gpus)) {
    for (const one of profiles) {
      const known = all.get(one.name) ?? {
        name: one.name,
        bytes: one.memory_bytes,
        slices: one.memory_slices,
        available: 0,
      };
      known.available += Number(one.available) || 0;
      all.set(one.name, known);
    }
  }
  return [...all.values()].sort((one, other) => one.bytes - other.bytes || (one.name < other.name ? -1 : 1));
}

/**
 * The words of a plan: `2x1g.10gb 3g.40gb` and `1g.10gb 1g.10gb 3g.40gb` are the same.
 * @param {string} typed @returns {string[] | string} The profiles, or what is wrong.
 */
export function parse(typed) {
  const all = [];
  for (const word of typed.split(/[\s,]+/).filter(Boolean)) {
    const [, times = "1", profile = ""] =
      /^(?:(\d{1,3})[x×])?(\d{1,2}g\.\d{1,4}gb(?:[+-][a-z.]{1,20})?)$/.exec(word) ?? [];
    if (profile === "" || Number(times) === 0) return `${label(word, 40)} is no profile: use 1g.10gb or 2x1g.10gb`;
    for (let at = 0; at < Number(times); at += 1) all.push(profile);
    if (all.length > MOST) return `more than ${MOST} instances`;
  }
  return all;
}

/** `4-7`. @param {any} planned */
export function place(planned) {
  const size = planned.memory_slices;
  return isFigure(size) && size > 1 ? `${planned.start}-${planned.start + size - 1}` : String(planned.start);
}

/** How an instance of a plan comes to be. @param {any} planned */
export function how(planned) {
  if (planned.reuses) return "reuses the idle instance";
  const removes = planned.removes ?? [];
  return removes.length > 0 ? `new, after removing idle ${label(removes.join(", "), 200)}` : "new";
}

/** Slots that a plan takes on a GPU. @param {any[]} plan @param {number} gpu */
export function planned(plan, gpu) {
  return plan.filter((one) => one.gpu_index === gpu).map((one) => ({ start: one.start, size: one.memory_slices }));
}

/** `1g.10gb (9.6 GiB, 7 free)`. @param {any} profile */
export const offered = (profile) =>
  `${label(profile.name, 30)} (${memory(profile.bytes)}, ${profile.available} free)`;
