import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import {
  allocated,
  applied,
  COLOURS,
  compute,
  hue,
  labels,
  matching,
  note,
  Palette,
  place,
  reference,
  shareUsed,
  slicesOn,
  sorted,
  stroke,
  used,
  whole,
} from "../../assets/lib/board.js";
import {
  computeParts,
  holders,
  how,
  memoryParts,
  parse,
  pictures,
  place as slotsOf,
  planned,
  profiles,
  room,
  slots,
} from "../../assets/lib/gpus.js";

const GIB = 2 ** 30;
const slice = (gpu, used, limit, more = {}) => ({
  gpu,
  label: `gpu${gpu}.5a`,
  used_bytes: used * GIB,
  limit_bytes: limit * GIB,
  share: 500,
  ...more,
});
const job = (id, slices, more = {}) => ({
  id: String(id),
  name: "train",
  user: "ana",
  since: "2026-11-26T12:00:00Z",
  slices,
  ...more,
});
const gpu = (index, more = {}) => ({
  index,
  model: "NVIDIA A100",
  mode: "shared",
  usable_bytes: 80 * GIB,
  used_bytes: 0,
  allocated_bytes: 0,
  share: 500,
  ...more,
});
const board = (gpus, jobs, waiting = { count: 0 }) => whole({ hostname: "lab", last_event: 1, gpus, jobs, waiting });

test("a change turns a board into the next one", () => {
  const before = board([gpu(0), gpu(1)], [job(7, [slice(0, 1, 2)]), job(9, []), job(10, [])], {
    count: 3,
    first: [{ id: "31" }],
  });
  const after = applied(before, {
    changed_at: "x",
    last_event: 8,
    gpus: [gpu(1, { share: 1 })],
    gpus_gone: [0],
    jobs: [job(100, []), job(7, [slice(0, 2, 2)])],
    jobs_gone: ["9"],
  });
  assert.deepEqual(
    after.gpus.map((one) => [one.index, one.share]),
    [[1, 1]],
  );
  assert.deepEqual(
    after.jobs.map((one) => one.id),
    ["7", "10", "100"],
  );
  assert.equal(after.jobs[0].slices[0].used_bytes, 2 * GIB);
  assert.deepEqual([after.last_event, after.waiting.count, after.waiting.first.length], [8, 3, 1]);
  assert.equal(applied(after, { last_event: 9 }).jobs, after.jobs, "what did not change is the same object");
  assert.equal(applied(after, { waiting: { count: 0 } }).waiting.first.length, 0);
});

test("a board without its lists is a node without anything", () => {
  for (const empty of [undefined, null, {}, { gpus: null, waiting: null }]) {
    const shown = whole(empty);
    assert.deepEqual(
      [shown.gpus, shown.jobs, shown.users, shown.waiting.count, shown.waiting.first],
      [[], [], [], 0, []],
    );
    assert.equal(allocated(shown), 0);
  }
});

test("the figures of a job are sums over its slices", () => {
  const two = job(7, [slice(0, 31.2, 39.6, { share_used: 270 }), slice(1, 1, 2)], { task: "7_0" });
  assert.deepEqual(
    [used(two), compute(two), place(two), reference(two)],
    ["32.2/41.6", "27/100", "gpu0:0.5a,gpu1:0.5a", "7_0"],
  );
  assert.deepEqual(
    [shareUsed(job(1, [slice(0, 1, 1)])), compute(job(1, [slice(0, 1, 1)])), place(job(1, []))],
    [undefined, "–/50", "–"],
  );
  assert.equal(slicesOn(board([], [two]), 1).length, 1);
});

test("notes name the most important first", () => {
  const now = Date.parse("2026-11-26T12:00:00Z");
  assert.deepEqual(
    note(job(1, [slice(0, 1, 1, { mismatch_bytes: -2 * GIB })], { bypass: true, denials: 2, suspended: true }), now),
    { text: "! bypass, ! refused 2×, suspended, mismatch 2.0 GiB", isAlert: true },
  );
  assert.deepEqual(note(job(1, []), now), { text: "", isAlert: false });
  assert.equal(note(job(1, [], { parked: true }), now).text, "parked");
});

test("running jobs are ordered and found by each column", () => {
  const jobs = [
    job(10, [slice(1, 5, 9)], { user: "zoe" }),
    job(7, [slice(0, 9, 9)], { queue: "half" }),
    job(9, [slice(2, 1, 1)], { name: "Eval" }),
  ];
  const order = (by, isReversed = false) => sorted(jobs, by, isReversed).map((one) => one.id);
  assert.deepEqual(
    [order("id"), order("id", true), order("memory"), order("on"), order("user")],
    [
      ["7", "9", "10"],
      ["10", "9", "7"],
      ["7", "10", "9"],
      ["7", "10", "9"],
      ["7", "9", "10"],
    ],
  );
  assert.deepEqual(order("no such column"), ["7", "9", "10"]);
  const found = (text) => matching(jobs, text).map((one) => one.id);
  assert.deepEqual(
    [found(""), found("eval"), found("half"), found("default"), found("10")],
    [["10", "7", "9"], ["9"], ["7"], ["10", "9"], ["10"]],
  );
});

test("the parts of a bar add up to the whole", () => {
  const one = gpu(0, {
    unmanaged_bytes: 4 * GIB,
    processes: [{ pid: 1, program: "blender", user: "zoe" }],
    held_elsewhere: [{ holder: "lee's run", share: 125, memory_bytes: 8 * GIB }],
  });
  const shown = board([one], [job(7, [slice(0, 30, 40)])]);
  const parts = memoryParts(shown, one);
  assert.deepEqual(
    parts.map((part) => [part.kind, part.width]),
    [
      ["used", 37.5],
      ["limit", 12.5],
      ["elsewhere", 10],
      ["outside", 5],
      ["free", 35],
    ],
  );
  assert.deepEqual(
    computeParts(shown, one).map((part) => [part.kind, part.width]),
    [
      ["limit", 50],
      ["elsewhere", 12.5],
      ["free", 37.5],
    ],
  );
  assert.deepEqual(
    holders(shown, one).map((holder) => holder.name),
    ["#7 train of ana", "lee's run", "outside: blender of zoe"],
  );
  const full = memoryParts(board([one], [job(1, [slice(0, 90, 70)]), job(2, [slice(0, 50, 60)])]), one);
  assert.ok(Math.abs(full.reduce((sum, part) => sum + part.width, 0) - 100) < 0.01, JSON.stringify(full));
  for (const broken of [gpu(0, { usable_bytes: 0 }), gpu(0, { usable_bytes: NaN })]) {
    assert.deepEqual(memoryParts(shown, broken), [{ kind: "free", width: 100 }]);
  }
});

test("MIG slots are in order and without gaps", () => {
  const mig = {
    slots: 8,
    instances: [
      { profile: "3g.40gb", start: 4, size: 4, state: "held", job: "23" },
      { profile: "1g.10gb", start: 1, size: 1, state: "idle" },
    ],
  };
  const shown = slots(mig).map((slot) => [slot.start, slot.size, slot.state]);
  assert.deepEqual(shown, [
    [0, 1, "free"],
    [1, 1, "idle"],
    [2, 1, "free"],
    [3, 1, "free"],
    [4, 4, "held"],
  ]);
  assert.deepEqual(slots(null), []);
  assert.equal(slots({ slots: 1e9, instances: [] }).length, 64);
  const odd = slots({
    slots: 4,
    instances: [
      { profile: "a", start: 0, size: 3, state: "held" },
      { profile: "b", start: 2, size: 9, state: "idle" },
      { profile: "c", start: 3, size: 9, state: "idle" },
    ],
  });
  assert.deepEqual(
    odd.map((slot) => [slot.start, slot.size]),
    [
      [0, 3],
      [3, 1],
    ],
  );
});

test("room is what a user types", () => {
  assert.equal(room({ available: { share: 250, memory_bytes: 19.87 * GIB } }), "-g 0.25 or --gpu-memory 19.8G");
  assert.equal(room({ available: { share: 0, memory_bytes: GIB } }), "--gpu-memory 1.0G");
  assert.equal(room({}), "none");
});

test("a plan is words, and its places are slots", () => {
  assert.deepEqual(parse("2x1g.10gb, 3g.40gb+me"), ["1g.10gb", "1g.10gb", "3g.40gb+me"]);
  assert.deepEqual(parse("  "), []);
  for (const wrong of ["1g", "0x1g.10gb", "$(reboot)", "1g.10gb;ls", "-1x1g.5gb"])
    assert.equal(typeof parse(wrong), "string", wrong);
  assert.equal(parse("999x1g.5gb"), "more than 128 instances");
  assert.deepEqual(
    [
      { start: 4, memory_slices: 4 },
      { start: 2, memory_slices: 1 },
    ].map(slotsOf),
    ["4-7", "2"],
  );
  assert.deepEqual([{ reuses: true }, {}, { removes: ["2g.10gb@2"] }].map(how), [
    "reuses the idle instance",
    "new",
    "new, after removing idle 2g.10gb@2",
  ]);
  const gpus = [
    { index: 0 },
    {
      index: 2,
      mig: {
        memory_slices: 8,
        profiles: [{ name: "1g.10gb", memory_bytes: 9, available: 3 }],
        instances: [{ profile: "1g.10gb", start: 0, memory_slices: 1, state: "in_use", job: "7" }],
      },
    },
  ];
  assert.deepEqual(
    pictures(gpus).map((one) => [one.index, one.mig.slots, one.mig.instances[0].size]),
    [[2, 8, 1]],
  );
  assert.deepEqual(
    profiles(gpus).map((one) => [one.name, one.available]),
    [["1g.10gb", 3]],
  );
  assert.deepEqual(
    planned(
      [
        { gpu_index: 2, start: 1, memory_slices: 1 },
        { gpu_index: 0, start: 0, memory_slices: 1 },
      ],
      2,
    ),
    [{ start: 1, size: 1 }],
  );
});

test("a key keeps its colour, and neighbours differ", () => {
  const palette = new Palette();
  const first = palette.of("job:7");
  const seen = Array.from({ length: COLOURS - 1 }, (_, at) => palette.of(`job:${at * COLOURS + 7 + COLOURS}`));
  assert.equal(new Set([first, ...seen]).size, COLOURS);
  for (let at = 0; at < 5000; at += 1) assert.ok(palette.of(`user:u${at}`) < COLOURS);
  const pairs = Array.from({ length: COLOURS }, (_, pair) => `${hue(pair)} ${stroke(pair)}`);
  assert.equal(new Set(pairs).size, COLOURS, "no pair of colour and pattern comes twice");
  const style = readFileSync(new URL("../../assets/style.css", import.meta.url), "utf8");
  for (let pair = 0; pair < COLOURS; pair += 1) {
    assert.ok(style.includes(`.c${pair} { --c: var(--c${hue(pair)}); --p: var(--p${stroke(pair)}); }`), `c${pair}`);
  }
  assert.equal(new Palette().of("job:7"), first);
  const keys = Array.from({ length: COLOURS }, (_, at) => `job:${at * COLOURS}`);
  assert.equal(new Set(palette.distinct(keys)).size, COLOURS);
  assert.equal(palette.distinct(["job:7"])[0], palette.of("job:7"));
});

test("labels of slices read as parts of one GPU", () => {
  const shown = (...names) => labels(names.map((name) => ({ label: name })));
  assert.deepEqual(
    [shown("gpu1.25c"), shown("gpu2", "gpu3"), shown("gpu0.5a", "gpu1", "gpu2"), shown("gpu0.1g.5gb@3"), shown()],
    ["gpu1:0.25c", "gpu2,3", "gpu0:0.5a,gpu1,2", "gpu0.1g.5gb@3", "–"],
  );
});
