/**
 * Server-sent events out of pieces of a stream. `EventSource` cannot send a header, so the page reads them itself.
 */

import { clean } from "./format.js";

/** Longest message that the page takes, in characters. A board of 8 GPUs and 64 jobs has 20,000. */
export const LONGEST = 8_000_000;

export class Events {
  #rest = "";

  /**
   * Takes the next piece, and returns every message that it completes.
   * @param {string} piece
   * @returns {{ kind: string, data: string }[]}
   */
  take(piece) {
    const text = this.#rest + piece;
    // A carriage return at the end may be the first half of a line's end.
    const blocks = text.replace(/\r\n/g, "\n").split("\n\n");
    this.#rest = blocks.pop() ?? "";
    if (this.#rest.length > LONGEST) throw new Error(`a message of the stream has more than ${LONGEST} characters`);
    return blocks.map(message).filter((one) => one.data !== "");
  }
}

/** Documents out of a text with one a line. @param {string} text @returns {any[]} */
export const lines = (text) =>
  text
    .split("\n")
    .filter(Boolean)
    .map((line) => JSON.parse(line));

/** @param {string} block */
function message(block) {
  let kind = "message";
  const data = [];
  for (const line of block.split("\n")) {
    const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line) ?? [];
    if (field === "event") kind = value;
    if (field === "data") data.push(value);
  }
  return { kind, data: data.join("\n") };
}

/**
 * The output of a job: lines out of pieces, with a bound on lines and on their length.
 *
 * A carriage return begins its line again, as on a terminal and in `divvy top`. Colours are left out.
 */

/** Lines that the page keeps, and characters of a line that it shows. */
export const MOST_LINES = 2_000;
export const LONGEST_LINE = 4_000;

const COLOURS = /\u001b\[[0-9;:]*[mK]/g;

/** @typedef {{ number: number, text: string }} Line */

export class Output {
  /** @type {Line[]} */
  lines = [];
  /** Lines that the bound has dropped. */
  dropped = 0;
  #next = 1;
  #rest = "";
  /** Characters of the open line beyond the bound. */
  #beyond = 0;

  /** Takes the next piece. @param {string} piece @returns {this} */
  take(piece) {
    const parts = piece.split("\n");
    parts.forEach((part, at) => {
      this.#add(part);
      if (at < parts.length - 1) this.#end();
    });
    const over = this.lines.length - MOST_LINES;
    if (over > 0) {
      this.lines.splice(0, over);
      this.dropped += over;
    }
    return this;
  }

  /** Every line, with the one that has not ended yet. @returns {Line[]} */
  shown() {
    const open = this.#text();
    return open === "" ? this.lines : [...this.lines, { number: this.#next, text: open }];
  }

  /** @param {string} part */
  #add(part) {
    const back = part.lastIndexOf("\r");
    // A carriage return at the end belongs to the line's end, or waits for what follows.
    if (back >= 0 && back < part.length - 1) {
      this.#rest = "";
      this.#beyond = 0;
      part = part.slice(back + 1);
    } else if (this.#rest.endsWith("\r") && part !== "") {
      this.#rest = "";
      this.#beyond = 0;
    }
    // Escapes take more room than what they leave.
    const room = Math.max(0, 2 * LONGEST_LINE - this.#rest.length);
    this.#rest += part.slice(0, room);
    this.#beyond += Math.max(0, part.length - room);
  }

  #text() {
    const text = clean(this.#rest.replace(/\r+$/, "").replace(COLOURS, "").replaceAll("\t", "    "));
    const more = this.#beyond + Math.max(0, text.length - LONGEST_LINE);
    return more > 0 ? `${text.slice(0, LONGEST_LINE)}… (${more} more characters)` : text;
  }

  #end() {
    const last = this.#rest.replace(/\r+$/, "");
    const back = last.lastIndexOf("\r");
    if (back >= 0) this.#rest = last.slice(back + 1);
    this.lines.push({ number: this.#next, text: this.#text() });
    this.#next += 1;
    this.#rest = "";
    this.#beyond = 0;
  }
}

/**
 * A line in pieces: those at odd places match.
 * @param {string} text @param {string} wanted
 */
export function pieces(text, wanted) {
  if (wanted === "") return [text];
  const [lower, needle] = [text.toLowerCase(), wanted.toLowerCase()];
  // Lower case may have another length; then nothing is marked.
  if (lower.length !== text.length) return [text];
  const found = [];
  let at = 0;
  for (;;) {
    const next = lower.indexOf(needle, at);
    if (next < 0) break;
    found.push(text.slice(at, next), text.slice(next, next + needle.length));
    at = next + needle.length;
  }
  return [...found, text.slice(at)];
}

/** Lines that contain a text, without regard to case. @param {Line[]} lines @param {string} wanted */
export function matching(lines, wanted) {
  const needle = wanted.toLowerCase();
  return needle === "" ? lines : lines.filter((line) => line.text.toLowerCase().includes(needle));
}

/**
 * Waits between attempts to reach the daemon, in milliseconds: 0.5, 1, 2, 4, 8, then 10 s, with a spread of a fifth.
 */

/** @param {number} attempt From 0. @param {number} random Between 0 and 1. */
export function delay(attempt, random) {
  const whole = Math.min(10_000, 500 * 2 ** Math.min(attempt, 10));
  return Math.round(whole * (0.9 + 0.2 * random));
}

/** Age in whole seconds, in steps that a screen reader may announce: 5 s, then minutes. @param {number} ms */
export function coarse(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  return seconds < 60 ? Math.floor(seconds / 5) * 5 : Math.floor(seconds / 60) * 60;
}
