/**
 * Formatting of sizes, times, shares and states, in the words of the command line (`crates/cli/src/text.rs`).
 *
 * A figure that is missing, `null` or not a number becomes `–`, never `NaN`.
 */

export const NONE = "–";

const MIB = 2 ** 20;
const GIB = 2 ** 30;
/** @type {[string, number][]} Largest first. */
const UNITS = [
  ["TiB", 2 ** 40],
  ["GiB", GIB],
  ["MiB", MIB],
  ["KiB", 1024],
  ["B", 1],
];
/** Above this a figure means "no limit": no GPU has an exbibyte. */
const UNLIMITED = 2 ** 60;
/** Combining marks that one base may carry, as in `crates/core/src/model/escape.rs`. */
const MARKS = 4;

const HIDDEN = /^(?:[\p{C}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800]|(?! )\p{Zs})$/u;
const MARK = /^[\p{Mn}\p{Me}]$/u;
const PLAIN = /^[ -~]*$/;

/** @param {unknown} value @returns {value is number} */
export function isFigure(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** @param {number} figure @param {number} unit */
function tenths(figure, unit) {
  return (Math.floor((figure * 10 + unit / 2) / unit) / 10).toFixed(1);
}

/** `4.0 GiB`. @param {unknown} bytes */
export function memory(bytes) {
  if (!isFigure(bytes)) return NONE;
  if (bytes >= UNLIMITED) return "unlimited";
  const size = Math.abs(bytes);
  const [name, unit] = UNITS.find(([, one]) => size >= one) ?? ["B", 1];
  const sign = bytes < 0 ? "-" : "";
  return sign + (unit === 1 ? `${Math.round(size)} B` : `${tenths(size, unit)} ${name}`);
}

/** `3.9/4.0 GiB`: several figures in the unit of the largest. @param {unknown[]} figures */
export function memories(figures) {
  const largest = Math.max(0, ...figures.filter(isFigure));
  const [unit, name] = largest >= GIB ? [GIB, "GiB"] : [MIB, "MiB"];
  const one = (/** @type {unknown} */ bytes) => {
    if (!isFigure(bytes)) return NONE;
    return bytes >= UNLIMITED ? "unlimited" : tenths(bytes, unit);
  };
  return `${figures.map(one).join("/")} ${name}`;
}

/** `31.2/39.6`, always in GiB, as the columns of `divvy top`. @param {...unknown} figures */
export function gib(...figures) {
  return figures.map((bytes) => (isFigure(bytes) ? tenths(bytes, GIB) : NONE)).join("/");
}

/** Rounded down: at least so much is there. @param {unknown} bytes */
export function memoryDown(bytes) {
  if (!isFigure(bytes)) return NONE;
  const [unit, name] = bytes >= GIB ? [GIB, "GiB"] : [MIB, "MiB"];
  return `${(Math.floor((bytes * 10) / unit) / 10).toFixed(1)} ${name}`;
}

/** Exact and short, as `--gpu-memory` takes it: `39.25GiB`. @param {number} bytes */
export function exactMemory(bytes) {
  if (!isFigure(bytes) || bytes < 0) return "0B";
  const all = BigInt(Math.round(bytes));
  const texts = UNITS.filter(([, unit]) => all >= BigInt(unit)).map(([name, unit]) => {
    const size = BigInt(unit);
    let text = String(all / size);
    let rest = all % size;
    if (rest > 0n) text += ".";
    while (rest > 0n) {
      rest *= 10n;
      text += String(rest / size);
      rest %= size;
    }
    return text + name;
  });
  return texts.reduce((best, text) => (text.length < best.length ? text : best), texts[0] ?? "0B");
}

/** `0.25` from 250 thousandths, `1` from 1000. @param {unknown} thousandths */
export function share(thousandths) {
  if (!isFigure(thousandths)) return NONE;
  return String(Math.round(thousandths) / 1000);
}

/** Percent of one GPU, from thousandths. @param {unknown} thousandths */
export function percent(thousandths) {
  return isFigure(thousandths) ? String(Math.floor((thousandths + 5) / 10)) : NONE;
}

/** `12.3 %`, rounded down; a part below a tenth is `<0.1 %`. @param {unknown} part @param {unknown} whole */
export function percentOf(part, whole) {
  if (!isFigure(part) || !isFigure(whole) || whole <= 0) return NONE;
  const figure = Math.floor((part * 1000) / whole);
  if (figure === 0 && part > 0) return "<0.1 %";
  return `${(figure / 10).toFixed(1)} %`;
}

/** GPU hours with two decimals, rounded down, from milliseconds. @param {unknown} gpuMs */
export function hours(gpuMs) {
  return isFigure(gpuMs) ? (Math.floor(gpuMs / 36_000) / 100).toFixed(2) : NONE;
}

/**
 * `12.34 Wh`, `1.25 kWh`, rounded down; `~12.34 Wh`: partly an estimate. Without energy it is empty.
 * @param {unknown} joules @param {unknown} [estimated] Joules.
 */
export function energy(joules, estimated) {
  if (!isFigure(joules) || joules <= 0) return "";
  const [unit, name] = joules >= 3_600_000 ? [3_600_000, "kWh"] : [3600, "Wh"];
  const hundredths = Math.floor((Math.round(joules * 1000) * 100) / (unit * 1000));
  const figure = hundredths === 0 ? "<0.01" : (hundredths / 100).toFixed(2);
  return `${isFigure(estimated) && estimated > 0 ? "~" : ""}${figure} ${name}`;
}

/** `1 job`, `4 jobs`. @param {number} count @param {string} noun @param {string} [nouns] */
export function count(count, noun, nouns = `${noun}s`) {
  return `${count} ${count === 1 ? noun : nouns}`;
}

/** Milliseconds of a time of the API, or of such a number; `undefined` if there is none. @param {unknown} time */
export function instant(time) {
  const at = typeof time === "string" ? Date.parse(time) : time;
  return isFigure(at) ? at : undefined;
}

/** `12s`, `3m12s`, `2h04m`, `3d04h` of whole seconds. @param {number} length */
export function duration(length) {
  const s = Math.max(0, Math.floor(length));
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m${two(s % 60)}s`;
  if (s < 86_400) return `${Math.floor(s / 3600)}h${two(Math.floor(s / 60) % 60)}m`;
  return `${Math.floor(s / 86_400)}d${two(Math.floor(s / 3600) % 24)}h`;
}

/** Time from `since` to `now`; a time to come counts as now. @param {unknown} since @param {number} now */
export function elapsed(since, now) {
  const at = instant(since);
  return at === undefined ? NONE : duration((now - at) / 1000);
}

/** A time to come in its largest unit: `12m`. @param {unknown} time @param {number} now */
export function short(time, now) {
  const at = instant(time);
  if (at === undefined) return NONE;
  const s = Math.max(0, Math.floor((at - now) / 1000));
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m`;
  return s < 86_400 ? `${Math.floor(s / 3600)}h` : `${Math.floor(s / 86_400)}d`;
}

/** A length as it is typed: `2h`, `1h 30m`. @param {unknown} seconds */
export function seconds(seconds) {
  if (!isFigure(seconds)) return NONE;
  const s = Math.floor(seconds);
  const parts = [
    [Math.floor(s / 3600), "h"],
    [Math.floor(s / 60) % 60, "m"],
    [s % 60, "s"],
  ];
  return (
    parts
      .filter(([n]) => n)
      .map(([n, unit]) => `${n}${unit}`)
      .join(" ") || "0s"
  );
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const pad = (/** @type {number} */ n) => String(n).padStart(2, "0");

/** @param {number} at */
function parts(at) {
  const date = new Date(at);
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return { date, day, minutes: `${pad(date.getHours())}:${pad(date.getMinutes())}` };
}

/** As short as it is clear: `18:20:03`, `Nov 25 18:20`, `2025-11-25`. @param {unknown} time @param {number} now */
export function moment(time, now) {
  const at = instant(time);
  if (at === undefined) return NONE;
  const [one, today] = [parts(at), parts(now)];
  if (one.day === today.day) return `${one.minutes}:${pad(one.date.getSeconds())}`;
  const isThisYear = one.date.getFullYear() === today.date.getFullYear();
  return isThisYear ? `${MONTHS[one.date.getMonth()]} ${pad(one.date.getDate())} ${one.minutes}` : one.day;
}

/**
 * A time of day; with the date unless it is today's: `13:10`, `11-25 13:10`.
 * @param {unknown} time
 * @param {number} now
 */
export function clock(time, now) {
  const at = instant(time);
  if (at === undefined) return NONE;
  const one = parts(at);
  return one.day === parts(now).day ? one.minutes : `${one.day.slice(5)} ${one.minutes}`;
}

/** `2026-01-02 03:04:05` in the reader's zone. @param {unknown} time */
export function fullTime(time) {
  const at = instant(time);
  if (at === undefined) return NONE;
  const one = parts(at);
  return `${one.day} ${one.minutes}:${pad(one.date.getSeconds())}`;
}

/** @param {string} char */
function escaped(char) {
  if (char === "\n") return "\\n";
  if (char === "\r") return "\\r";
  if (char === "\t") return "\\t";
  return `\\u{${(char.codePointAt(0) ?? 0).toString(16)}}`;
}

/**
 * A text that another user typed, with `\n` and `\u{202e}` in place of characters that are invisible or that move
 * their neighbours.
 * @param {unknown} text
 */
export function clean(text) {
  if (text === null || text === undefined) return "";
  const typed = String(text);
  if (PLAIN.test(typed)) return typed;
  let shown = "";
  let room = 0;
  for (const char of typed) {
    const isMark = MARK.test(char);
    if (HIDDEN.test(char) || (isMark && room === 0)) {
      shown += escaped(char);
      room = 0;
    } else {
      shown += char;
      room = isMark ? room - 1 : MARKS;
    }
  }
  return shown;
}

/**
 * A cleaned text of at most so many characters, `–` if there is none.
 * @param {unknown} text
 * @param {number} [most]
 */
export function label(text, most = 200) {
  const shown = clean(typeof text === "string" && text.length > 4 * most ? text.slice(0, 4 * most) : text);
  if (shown === "") return NONE;
  const chars = [...shown];
  return chars.length > most ? `${chars.slice(0, most - 1).join("")}…` : shown;
}

/** Program and arguments as a shell needs them. @param {readonly string[]} words */
export function commandLine(words) {
  const quoted = words.map((word) => {
    if (/^[\p{L}\p{N}\-_./=:,+@%]+$/u.test(word)) return word;
    return `'${word.replaceAll("'", "'\\''")}'`;
  });
  return clean(quoted.join(" "));
}

/** A code of the API as words: `behind_quota` becomes `behind quota`. @param {unknown} code */
export function words(code) {
  return clean(code).replaceAll("_", " ");
}

/**
 * The request as a user types it: `0.25`, `4GiB`, `2`, `1-4`, `8x0.5`, `2g.10gb`.
 * @param {any} request An `Amount`, or the text of a brief job.
 */
export function amount(request) {
  if (typeof request === "string") return label(request, 40);
  switch (request?.kind) {
    case "share":
      return share(request.thousandths);
    case "memory":
      return exactMemory(request.bytes);
    case "whole":
      return String(request.count);
    case "range":
      return `${request.min}-${request.max}`;
    case "shares":
      return `${request.count}x${share(request.thousandths)}`;
    case "mig":
      return label(request.profile, 40);
    default:
      return NONE;
  }
}

/** The words that the command line has for an end, where they differ from the code. */
const ENDS = /** @type {Record<string, string>} */ ({
  launch_failed: "failed",
  supervisor_lost: "lost",
  bypass: "killed",
  time_limit: "timed out",
  idle_timeout: "idle",
  gpu_lost: "GPU lost",
});

/** Its memory is in host memory, and its processes run. @param {any} job A job of the API, brief or whole. */
export const isParked = (job) =>
  !job?.suspended && Boolean(job?.parked || (job?.gpu_memory && job.gpu_memory.place !== "gpu"));

/** `queued`, `suspended`, `failed (3)`. @param {any} job A job of the API, brief or whole. */
export function state(job) {
  const state = job?.state ?? "running";
  if (state === "running" && job?.suspended) return "suspended";
  if (state === "running" && isParked(job)) return "parked";
  if (state !== "ended" || !job.end_reason) return words(state);
  const end = ENDS[job.end_reason] ?? words(job.end_reason);
  return job.end_reason !== "completed" && isFigure(job.exit_code) ? `${end} (${job.exit_code})` : end;
}

/** `GPU 0 · A100-SXM4-80GB`: the model without its maker. @param {unknown} model */
export function modelName(model) {
  return label(model, 60).replace(/^NVIDIA /, "");
}
