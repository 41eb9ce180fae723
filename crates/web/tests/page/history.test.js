import assert from "node:assert/strict";
import test from "node:test";

import {
  curve,
  end,
  grid,
  grouped,
  isSeen,
  joined,
  MOST_POINTS,
  on,
  RANGES,
  rest,
  sampled,
  scaled,
  stacked,
  total,
  wholeRun,
} from "../../assets/lib/history.js";
import { days, due, field, rows, sheet, startOf, table } from "../../assets/lib/usage.js";

const answer = (from, values, step = 10) => ({
  of: "gpu:0",
  step_s: step,
  from: new Date(from * 1000).toISOString(),
  figures: [{ name: "share", values }],
});

test("an answer joins the curve that is known", () => {
  const known = curve(answer(1000, [1, 2, 3]));
  assert.equal(end(known), 1030);
  const later = joined(known, curve(answer(1020, [30, 4, 5])), 1010);
  assert.deepEqual([later.from, later.values.share], [1010, [2, 30, 4, 5]]);
  assert.deepEqual(joined(undefined, known, 0), known);
  assert.deepEqual(joined(known, curve(answer(2000, [9])), 0).values.share, [9], "a gap begins anew");
  assert.deepEqual(joined(known, curve(answer(1030, [9], 60)), 0).step, 60, "so does another step");
  const other = { ...curve(answer(1020, [])), values: { power: [7] } };
  assert.deepEqual(joined(known, other, 1000).values, { share: [1, 2], power: [null, null, 7] });
  assert.deepEqual(curve(undefined), { from: 0, step: 1, values: {} });
});

test("a grid has at most so many points, and each bucket its mean", () => {
  for (const range of Object.values(RANGES)) {
    const { times, bucket } = grid(1_000_003, range);
    assert.ok(times.length <= MOST_POINTS && times.length * bucket <= range.seconds, range.name);
    assert.ok(times.every((time) => time % bucket === 0) && times.at(-1) <= 1_000_003);
    assert.equal(bucket % range.step, 0);
  }
  const points = { bucket: 20, times: [1000, 1020, 1040] };
  assert.deepEqual(on(curve(answer(980, [9, 9, 1, 3, null, 5, NaN])), "share", points), [2, 5, null]);
  assert.deepEqual(on(undefined, "share", points), [null, null, null]);
});

test("stacks add up, and what is missing counts nothing where another row has a value", () => {
  const [one, two] = [
    [1, null, 3, null],
    [10, 20, null, null],
  ];
  assert.deepEqual(total([one, two]), [11, 20, 3, null]);
  assert.deepEqual(stacked([one, two]), [
    [1, 0, 3, null],
    [11, 20, 3, null],
  ]);
  assert.deepEqual(rest([12, 15, null, 4], [one, two]), [1, 0, null, 4]);
  assert.deepEqual(
    grouped([
      { key: "a", row: one },
      { key: "b", row: [5] },
      { key: "a", row: two },
    ]),
    [
      { key: "a", row: [11, 20, 3, null] },
      { key: "b", row: [5] },
    ],
  );
  assert.deepEqual(stacked([]), []);
  assert.deepEqual([isSeen([0, null]), isSeen([null, 0.1])], [false, true]);
  assert.deepEqual(scaled([1024, null], 1024), [1, null]);
});

test("a table of a chart has few rows and the last point", () => {
  for (const points of [0, 1, 59, 60, 61, 720]) {
    const shown = sampled(points);
    assert.ok(shown.length <= 60);
    assert.equal(shown.at(-1), points > 0 ? points - 1 : undefined);
  }
});

test("a field of a file is quoted, and no formula", () => {
  assert.deepEqual(["a", "a,b", 'say "hi"', "two\nlines", null, undefined, 1.5, -3, NaN].map(field), [
    "a",
    '"a,b"',
    '"say ""hi"""',
    '"two\nlines"',
    "",
    "",
    "1.5",
    "-3",
    "",
  ]);
  for (const text of [
    "=1+1",
    "+cmd|' /C calc'!A0",
    "-2",
    "@SUM(A1)",
    "\t=1",
    " =1",
    "\r=1",
    '=HYPERLINK("http://x")',
    "＝1",
    "\u0000=1",
  ]) {
    assert.match(field(text), /^"?'/, JSON.stringify(text));
  }
  assert.equal(
    table([
      ["user", "held"],
      ["=1", 2],
    ]),
    'user,held\r\n"\'=1",2\r\n',
  );
});

test("hours are rows by user, with their days", () => {
  const hour = 3_600_000;
  const names = ["2026-11-25", "2026-11-26"];
  const row = (user, held, more = {}) => ({
    user,
    jobs: 1,
    allocated_gpu_ms: held * hour,
    used_gpu_ms: (held * hour) / 2,
    idle_gpu_ms: 0,
    loaned_gpu_ms: 0,
    unknown_gpu_ms: 0,
    capacity_gpu_ms: 48 * hour,
    ...more,
  });
  const found = rows(
    [row("kim", 1), row("ana", 36, { energy_joules: 1.5 }), row(null, 0), row(null, 0, { idle: true })],
    [row("ana", 32, { day: names[0] }), row("ana", 4, { day: names[1] }), row("kim", 1, { day: "2020-01-01" })],
    "user",
    names,
  );
  assert.deepEqual(
    found.map((one) => [one.name, one.held / hour, one.days.map((ms) => ms / hour)]),
    [
      ["ana", 36, [32, 4]],
      ["kim", 1, [0, 0]],
      ["", 0, [0, 0]],
    ],
  );
  assert.equal(due(500, 7), 84 * hour);
  assert.equal(due(undefined, 7), undefined);
  const [head, first] = sheet(found, "user", names);
  assert.equal(first[head.indexOf("energy_joules")], 1.5);
  assert.deepEqual([head[0], head.at(-1), first[0], first[2], first.at(-1)], ["user", "2026-11-26", "ana", 36, 4]);
});

test("days end today and begin at midnight here", () => {
  const now = new Date(2026, 10, 26, 0, 30).getTime();
  assert.deepEqual(days(now, 3), ["2026-11-24", "2026-11-25", "2026-11-26"]);
  assert.equal(new Date(startOf("2026-11-24")).getTime(), new Date(2026, 10, 24).getTime());
});

test("the curve of a job has the job's whole run", () => {
  const at = (second) => new Date(second * 1000).toISOString();
  const run = (began, ended) => wholeRun({ started_at: at(began), ended_at: ended && at(ended) }, 1_000_000);
  const [short, live, long, ended] = [
    run(999_940),
    run(1_000_000 - 1200),
    run(1_000_000 - 86_400),
    run(1_000_000 - 7200, 1_000_000 - 7140),
  ];
  assert.deepEqual([short.seconds, short.step, short.until], [63, 1, 1_000_000]);
  assert.deepEqual([live.seconds, live.step], [1260, 10]);
  assert.deepEqual([long.seconds, long.step], [90_720, 60]);
  // It ended long ago, so that the daemon keeps no figures of each second.
  assert.deepEqual([ended.seconds, ended.step, ended.until], [63, 10, 1_000_000 - 7140]);
  assert.equal(wholeRun({}, 1_000_000).seconds, 60, "it has not started");
});
