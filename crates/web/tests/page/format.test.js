import assert from "node:assert/strict";
import test from "node:test";

import {
  amount,
  clean,
  clock,
  commandLine,
  duration,
  elapsed,
  exactMemory,
  gib,
  hours,
  label,
  memories,
  memory,
  memoryDown,
  moment,
  percent,
  percentOf,
  seconds,
  share,
  short,
  state,
  words,
} from "../../assets/lib/format.js";

const MIB = 2 ** 20;
const GIB = 2 ** 30;

test("sizes read as on the command line", () => {
  assert.deepEqual([4 * GIB, 512 * MIB, 3, 39.25 * GIB, 2 ** 41].map(memory), [
    "4.0 GiB",
    "512.0 MiB",
    "3 B",
    "39.3 GiB",
    "2.0 TiB",
  ]);
  assert.equal(memories([512 * MIB, 4 * GIB]), "0.5/4.0 GiB");
  assert.equal(memories([3 * MIB, 512 * MIB]), "3.0/512.0 MiB");
  assert.equal(gib(31.2 * GIB, 39.6 * GIB), "31.2/39.6");
  assert.equal(memoryDown((GIB * 387) / 10 + (GIB * 99) / 1000), "38.7 GiB");
  assert.equal(memoryDown(GIB - 1), "1023.9 MiB");
  assert.equal(memory(-GIB), "-1.0 GiB");
});

test("an exact size is as short as the command line writes it", () => {
  const sizes = [4 * GIB, 39.25 * GIB, 512 * MIB, 2 ** 40, 1234, 0, GIB + 1];
  assert.deepEqual(sizes.map(exactMemory), ["4GiB", "39.25GiB", "512MiB", "1TiB", "1234B", "0B", "1073741825B"]);
});

test("a missing or impossible figure is a dash and never NaN", () => {
  for (const wrong of [undefined, null, NaN, Infinity, "x", {}]) {
    for (const shown of [memory, share, percent, gib, memoryDown, hours, seconds]) assert.equal(shown(wrong), "–");
    assert.equal(elapsed(wrong, 0), "–");
    assert.equal(clock(wrong, 0).includes("NaN"), false);
  }
  assert.equal(memories([undefined, GIB]), "–/1.0 GiB");
  assert.equal(memory(2 ** 64), "unlimited");
  assert.equal(percentOf(1, 0), "–");
});

test("shares, percent and hours", () => {
  assert.deepEqual([250, 500, 1000, 125, 1, 2750, 0].map(share), ["0.25", "0.5", "1", "0.125", "0.001", "2.75", "0"]);
  assert.deepEqual([270, 125, 994, 995].map(percent), ["27", "13", "99", "100"]);
  assert.deepEqual([percentOf(36, 48), percentOf(1, 10_000), percentOf(0, 9)], ["75.0 %", "<0.1 %", "0.0 %"]);
  assert.equal(hours(12.509 * 3_600_000), "12.50");
});

test("elapsed time has two units at most", () => {
  assert.deepEqual([-5, 0, 59].map(duration), ["0s", "0s", "59s"]);
  assert.deepEqual([60, 192, 3600, 7440, 86_400 * 3 + 4 * 3600].map(duration), [
    "1m00s",
    "3m12s",
    "1h00m",
    "2h04m",
    "3d04h",
  ]);
  const now = Date.parse("2026-11-26T18:20:03Z");
  assert.equal(elapsed("2026-11-26T18:17:00.123456Z", now), "3m02s");
  assert.deepEqual(
    [30, 720, 7300, 90_000].map((s) => short(new Date(now + s * 1000).toISOString(), now)),
    ["30s", "12m", "2h", "1d"],
  );
  assert.deepEqual([7200, 5400, 42, 0].map(seconds), ["2h", "1h 30m", "42s", "0s"]);
});

test("a time is as short as it is clear, in the reader's zone", () => {
  const at = (/** @type {[number, number, number, number?, number?, number?]} */ ...parts) =>
    new Date(...parts).getTime();
  const now = at(2026, 10, 26, 18, 20, 3);
  assert.equal(moment(at(2026, 10, 26, 0, 0, 1), now), "00:00:01");
  assert.equal(moment(at(2026, 10, 25, 23, 59, 59), now), "Nov 25 23:59");
  assert.equal(moment(at(2025, 10, 26, 18, 20, 3), now), "2025-11-26");
  assert.deepEqual(
    [at(2026, 10, 26, 13, 10), at(2026, 10, 25, 13, 10)].map((time) => clock(time, now)),
    ["13:10", "11-25 13:10"],
  );
});

test("a user's text cannot hide, move its neighbours, or grow without end", () => {
  assert.equal(clean("a\u001b[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
  assert.equal(clean("größer 訓練"), "größer 訓練");
  assert.equal(clean("gpu\u202e0\u2066x\u200b"), "gpu\\u{202e}0\\u{2066}x\\u{200b}");
  assert.equal(clean(`e${"\u0301".repeat(6)}`), `e${"\u0301".repeat(4)}\\u{301}\\u{301}`);
  assert.equal(clean("\u0301a"), "\\u{301}a");
  assert.equal(clean("a\ud800b"), "a\\u{d800}b");
  assert.equal(clean("<img src=x onerror=alert(1)>"), "<img src=x onerror=alert(1)>");
  assert.equal([...label("x".repeat(1_000_000))].length, 200);
  assert.deepEqual([label(""), label(null), label(undefined)], ["–", "–", "–"]);
});

test("a command line can be pasted back", () => {
  assert.equal(commandLine(["python", "a b.py", "it's", ""]), "python 'a b.py' 'it'\\''s' ''");
  assert.equal(commandLine(["divvy", "cancel", "12_3"]), "divvy cancel 12_3");
  assert.equal(commandLine(["divvy", "move", "7", "-q", "$(reboot)"]), "divvy move 7 -q '$(reboot)'");
});

test("requests and states have the words of the command line", () => {
  const kinds = [
    { kind: "share", thousandths: 250 },
    { kind: "memory", bytes: 4 * GIB },
    { kind: "whole", count: 2 },
    { kind: "range", min: 1, max: 4 },
    { kind: "shares", count: 8, thousandths: 500 },
    { kind: "mig", profile: "2g.10gb" },
    "0.25",
    { kind: "of_tomorrow" },
    undefined,
  ];
  assert.deepEqual(kinds.map(amount), ["0.25", "4GiB", "2", "1-4", "8x0.5", "2g.10gb", "0.25", "–", "–"]);
  assert.equal(state({ state: "running", suspended: true }), "suspended");
  assert.equal(state({ state: "running", gpu_memory: { place: "host" } }), "parked");
  assert.equal(state({ state: "running", gpu_memory: { place: "gpu" } }), "running");
  assert.equal(state({}), "running");
  assert.equal(state({ state: "ended", end_reason: "failed", exit_code: 3 }), "failed (3)");
  assert.equal(state({ state: "ended", end_reason: "completed", exit_code: 0 }), "completed");
  assert.equal(state({ state: "ended", end_reason: "supervisor_lost" }), "lost");
  assert.equal(state({ state: "ended", end_reason: "time_limit", exit_code: 143 }), "timed out (143)");
  assert.equal(words("behind_quota"), "behind quota");
});
