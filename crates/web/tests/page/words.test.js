import assert from "node:assert/strict";
import test from "node:test";

import { folded } from "../../assets/lib/board.js";
import { actionsFor, bytes, command, commands, move, refusal, resize } from "../../assets/lib/actions.js";
import {
  explained,
  needed,
  reason,
  refusal as refused,
  requestable,
  sentence,
  sizeFlag,
  start,
} from "../../assets/lib/explain.js";
import { efficiency, facts, results, sum, total } from "../../assets/lib/facts.js";
import { ended, ENDED_FILTERS, filter, format, jobLink, largest, parse, places, token, waiting } from "../../assets/lib/route.js";

const GIB = 2 ** 30;
const now = Date.parse("2026-11-26T12:00:00Z");
const at = (seconds) => new Date(now + seconds * 1000).toISOString();

test("routes survive their fragments", () => {
  assert.deepEqual(parse(""), { page: "overview", query: {} });
  assert.deepEqual(parse("#/queue?user=ana&text=a%20b"), { page: "queue", query: { user: "ana", text: "a b" } });
  assert.deepEqual(parse("#/job/12_3"), { page: "job", job: "12_3", query: {} });
  assert.deepEqual(parse(jobLink("a b/c?d")), { page: "job", job: "a b/c?d", query: {} });
  assert.equal(parse("#/").page, "overview");
  for (const wrong of ["#/nowhere", "#/job/", "#/../etc", "#/constructor", "#/__proto__"])
    assert.equal(parse(wrong).page, "missing", wrong);
  assert.equal(parse(`#/queue?text=${"x".repeat(999)}`).query.text.length, 200);
  assert.equal(format("queue", { user: "ana", text: "", queue: undefined }), "#/queue?user=ana");
  assert.equal(parse("#/job/%E0%A4%A").job, "%E0%A4%A");
});

test("a token is what is no route", () => {
  assert.deepEqual(["#abc-DEF_123", "#", "", "#/queue", "#a b", "#abc/", "#\u00e4"].map(token), [
    "abc-DEF_123",
    undefined,
    undefined,
    undefined,
    undefined,
    "abc",
    undefined,
  ]);
});

test("a list asks for what its fields name, a page at a time", () => {
  assert.equal(waiting({}), "/v1/jobs?state=queued&sort=place&limit=100&fold=true&brief=true");
  assert.equal(
    waiting({ queue: "half" }, "9"),
    "/v1/jobs?state=queued&sort=place&limit=100&fold=true&brief=true&queue=half&after=9",
  );
  assert.equal(waiting({ user: "a&b=c" }), "/v1/jobs?state=queued&sort=place&limit=100&fold=true&user=a%26b%3Dc");
  assert.deepEqual(filter({ user: " ana ", text: "  ", other: "x" }), { user: "ana" });
  assert.equal(waiting({}, undefined, true), "/v1/jobs?state=queued&sort=place&limit=100&brief=true");
  assert.match(largest("2026-01-01T00:00:00Z", 7, 0), /sort=-peak&limit=7&brief=true&gpu=0$/);
});

test("the list of ended jobs has the filters of ps -a", () => {
  assert.equal(ended({}, now), "/v1/jobs?state=ended&sort=-ended&limit=100&brief=true");
  const query = { state: "failed", user: "ana", name: "train*", since: "24h", text: "not here", queue: " ", project: "v" };
  const path = ended(filter(query, ENDED_FILTERS), now, "3-100");
  assert.equal(
    path,
    "/v1/jobs?state=failed&sort=-ended&limit=100&brief=true&user=ana&name=train*&project=v" +
      "&since=2026-11-25T12%3A00%3A00.000Z&after=3-100",
  );
  assert.doesNotMatch(ended({ since: "ever" }, now), /since/);
  assert.equal(parse("#/jobs?state=failed").page, "jobs");
});

test("an array is one row with its indices", () => {
  const one = { id: "14", task: "12_2", name: "sweep[2]", folded: { count: 38, indices: "2-39" } };
  assert.deepEqual(folded(one), { reference: "12_[2-39]", name: "sweep" });
  assert.deepEqual(folded({ id: "3", name: "a[b]" }), { reference: "3", name: "a[b]" });
  // Places behind such a row are not known: other tasks of it may stand there.
  const rows = places([{ id: "1" }, one, { id: "60" }], {}, {}).rows;
  assert.deepEqual(
    rows.map((row) => row.place),
    [1, 2, undefined],
  );
});

test("an ended job is told its use and a size only where both are known", () => {
  const job = (denials, more = {}) => ({
    state: "ended",
    request: { kind: "share", thousandths: 500 },
    slices: [{ memory_peak_bytes: 12 * GIB, memory_limit_bytes: 40 * GIB, denials }],
    ...more,
  });
  const advice = (gib) => [{ gpus: 1, memory_bytes: gib * GIB, amount: { kind: "memory", bytes: gib * GIB } }];
  const usage = { allocated_gpu_ms: 1000, used_gpu_ms: 400, loaned_gpu_ms: 90, unknown_gpu_ms: 0 };
  assert.equal(efficiency(job(0), []), "12.0 of 40.0 GiB at its peak");
  assert.equal(
    efficiency(job(0), advice(14), usage),
    "12.0 of 40.0 GiB at its peak, 31 % of its compute time; next time: --gpu-memory 14GiB",
  );
  assert.equal(efficiency(job(0), advice(40), { ...usage, unknown_gpu_ms: 600 }), "12.0 of 40.0 GiB at its peak");
  assert.match(efficiency(job(1), advice(14)), /peak; its limit refused memory, so its whole need is unknown$/);
  assert.match(efficiency(job(1), advice(64)), /next time: --gpu-memory 64GiB$/);
  assert.equal(efficiency(job(0, { state: "running" }), advice(14)), "");
  const drew = (joules, estimated = 0) => ({ energy_joules: joules, energy_estimated_joules: estimated });
  assert.equal(efficiency(job(0, { state: "running" }), [], drew(36)), "0.01 Wh");
  assert.equal(efficiency(job(0), [], drew(7_200_000, 0.001)), "12.0 of 40.0 GiB at its peak, ~2.00 kWh");
  assert.equal(efficiency(job(0), [], drew(0.001)), "12.0 of 40.0 GiB at its peak, <0.01 Wh");
});

test("places are counted only where the list has whole queues", () => {
  const jobs = [{ id: "1", queue: "a" }, { id: "2" }, { id: "3", queue: "a" }];
  const { rows, seen } = places(jobs, { a: 100 }, {});
  assert.deepEqual([rows.map((row) => row.place), seen], [[101, 1, 102], { a: 102, default: 1 }]);
  assert.deepEqual(
    places(jobs, {}, { user: "ana" }).rows.map((row) => row.place),
    [undefined, undefined, undefined],
  );
  assert.deepEqual(places([{ id: "1", place: 7 }], {}, { text: "x" }).rows[0].place, 7);
});

test("an action is a call and its command line", () => {
  const lines = (job) =>
    actionsFor(job).map((one) => `${command(one)} ${one.path} ${JSON.stringify(one.body) ?? "-"}`);
  assert.deepEqual(lines({ id: "7" }), [
    "divvy suspend 7 /v1/jobs/7/suspend {}",
    "divvy requeue 7 /v1/jobs/7/requeue -",
    "divvy cancel 7 /v1/jobs/7/cancel -",
  ]);
  assert.deepEqual(lines({ id: "9", array: { array: "9", index: 2 }, state: "queued" }), [
    'divvy move 9_2 --top /v1/jobs/9_2/change {"top":true}',
    "divvy hold 9_2 /v1/jobs/9_2/hold -",
    "divvy cancel 9_2 /v1/jobs/9_2/cancel -",
  ]);
  assert.match(lines({ id: "9", state: "queued", reason_code: "held" })[1], /^divvy release 9 /);
  assert.match(lines({ id: "9", suspended: true })[0], /^divvy resume 9 /);
  assert.match(lines({ id: "9", parked: true })[0], /^divvy wake 9 /);
  assert.deepEqual(lines({ id: "9", state: "ended" }), []);
  assert.equal(command(move("7", "a b")), "divvy move 7 -q 'a b'");
});

test("a size that is typed becomes what the command line sends", () => {
  const body = (typed) => {
    const action = resize("7", typed);
    return typeof action === "string" ? undefined : [command(action), action.body];
  };
  assert.deepEqual(body(" 12G "), [
    "divvy resize 7 --gpu-memory 12G",
    { amount: { kind: "memory", bytes: 12 * GIB } },
  ]);
  assert.deepEqual(body("0.5"), ["divvy resize 7 -g 0.5", { amount: { kind: "share", thousandths: 500 } }]);
  assert.deepEqual(body("2"), ["divvy resize 7 -g 2", { amount: { kind: "whole", count: 2 } }]);
  assert.deepEqual(body("2x0.25"), [
    "divvy resize 7 -g 2x0.25",
    { amount: { kind: "shares", count: 2, thousandths: 250 } },
  ]);
  assert.deepEqual(body("strict=0.25"), ["divvy resize 7 --compute strict=0.25", { compute: "strict=0.25" }]);
  for (const wrong of ["", "half", "1.5", "12Q", "12GB", "strict=9", "$(reboot)", "-1", "0", "0.0005", "0.000"])
    assert.equal(body(wrong), undefined, wrong);
  assert.deepEqual(
    [bytes("1.5GiB"), bytes("512mi"), bytes("1e3G"), bytes("99999999T")],
    [1.5 * GIB, 512 << 20, undefined, undefined],
  );
});

test("an action that is off says why", () => {
  const user = {
    user: "ana",
    role: "user",
    actions: true,
    may: { cancel: true, resize: false },
    may_others: { cancel: false },
  };
  assert.equal(refusal("cancel", user, "ana"), undefined);
  assert.equal(refusal("cancel", user, "bo"), "only bo and operators may cancel this job");
  assert.equal(refusal("resize", user, "ana"), "the role user may not resize jobs");
  assert.equal(refusal("cancel", { ...user, role: "operator", may_others: { cancel: true } }, "bo"), undefined);
  assert.equal(refusal("cancel", { ...user, actions: false, why_no_actions: "read-only" }, "ana"), "read-only");
  assert.match(refusal("cancel", { role: "admin" }), /--allow-actions/);
  assert.match(refusal("cancel", undefined), /does not know your role/);
});

test("why a job waits reads as on the command line", () => {
  const why = {
    job: "31",
    state: "queued",
    queue: "half",
    place: 1,
    summary: "needs 1 whole GPU; 3.5 of 4 GPUs in use",
    gpus: [
      {
        gpu_index: 0,
        unmet: ["0.75 in use"],
        holders: ["#7 half 0.5"],
        held_by: [
          {
            ...{ job: "7", name: "llama", user: "ana", queue: "half", size: "0.5" },
            ...{ usual_run: { median_s: 2520, runs: 7 }, usually_ends: at(720), ends_by: at(3600) },
          },
        ],
      },
      { gpu_index: 1, unmet: [], holders: [], held_by: [{ job: "7" }, { job: "14" }] },
      {
        gpu_index: 2,
        unmet: ["whole GPU held by #14"],
        holders: ["#14 open 1"],
        held_by: [{ job: "14", name: "x", user: "bo", queue: "open", size: "1" }],
      },
    ],
    behind: ["1", "2", "3", "4", "5", "6", "7", "8", "9"],
    usual_start: at(600),
    expected_start: at(900),
    latest_start: at(4200),
    suggested_changes: [
      { text: "would start now in queue quarter_gpu", command: ["divvy", "move", "31", "-q", "quarter_gpu"] },
      { text: "\u202ex" },
    ],
  };
  const { sentence: words, facts: lines, changes } = explained(why, now);
  assert.equal(words, "#31 waits in queue half, place 1: needs 1 whole GPU; 3.5 of 4 GPUs in use");
  assert.deepEqual(lines, [
    ["GPU 0", "0.75 in use (#7 llama of ana, half 0.5)"],
    ["GPU 1", "would fit"],
    ["GPU 2", "whole GPU held by #14 x of bo"],
    ["ends", "#7 usually runs 42m (median of 7), so in about 12m00s; in 1h00m at the latest"],
    ["ends", "unknown for #14: no time limit, no earlier runs"],
    ["starts", "in about 10m00s, if no other job is submitted and the jobs ahead take their usual time"],
    ["starts", "in about 15m00s, in 1h10m at the latest, if no other job is submitted"],
    ["behind", "#1, #2, #3, #4, #5, #6, #7, #8 and 1 more"],
  ]);
  assert.deepEqual(changes, [
    { text: "would start now in queue quarter_gpu", command: "divvy move 31 -q quarter_gpu" },
    { text: "\\u{202e}x", command: undefined },
  ]);
  assert.equal(
    explained({ job: "1", state: "running", queue: "q", summary: "it runs" }, now).sentence,
    "#1 does not wait: it runs",
  );
  const held = { job: "7", state: "queued", queue: "q", reason_code: "held", summary: "held by ana" };
  assert.deepEqual(explained(held, now).changes, [
    { text: "it is held; after its release it waits for its turn", command: "divvy release 7" },
  ]);
  assert.equal(start({ expected_start: at(720), latest_start: at(4200) }, now).startsWith("~12m (by "), true);
  assert.equal(start({}, now), "–");
});

test("refused memory reads as on the command line", () => {
  const record = {
    number: 0,
    at: at(-60),
    pid: 41,
    program: "python",
    api: "cuMemAlloc_v2",
    cause: "slice_full",
    gpu_index: 0,
    asked_bytes: 2 * GIB,
    limit_bytes: 8 * GIB,
    used_bytes: 7 * GIB,
    own_bytes: 6 * GIB,
    unaccounted_bytes: 0,
    gpu_free_bytes: 30 * GIB,
    gpu_total_bytes: 80 * GIB,
    sufficient_limit_bytes: 9 * GIB + 1,
    skipped: 2,
    allocations: 5,
    largest: [{ bytes: GIB, count: 3, kind: "pool" }],
    peer_count: 2,
    peers: [{ pid: 42, used_bytes: GIB }],
  };
  const { title, facts: lines } = refused(record, now);
  assert.equal(title, "pid 41 python: cuMemAlloc_v2 requested 2.0 GiB on GPU 0");
  assert.deepEqual(lines, [
    ["when", "1m00s ago"],
    ["cause", "the slice was full: 7.0/8.0 GiB in use; the GPU had 30.0/80.0 GiB free"],
    ["used by", "this process 6.0 GiB, pid 42 1.0 GiB, 1 more processes"],
    ["holding", "3 × 1.0 GiB pool, 2 smaller"],
    ["needs", "--gpu-memory 9217MiB, or more"],
    ["before", "refused 2 times without a record"],
  ]);
  assert.match(refused({ ...record, cause: "gpu_full", asked_bytes: 2 ** 50 }, now).title, /more than a whole GPU/);
  assert.deepEqual(
    [sentence({}), sentence({ records: [record] }), sentence({ denials: 1 }), sentence({ denials: 3 })],
    [
      "No GPU memory was refused.",
      "GPU memory was refused, but not by the limit.",
      "The limit refused GPU memory once.",
      "The limit refused GPU memory 3 times.",
    ],
  );
  assert.equal(needed({ records: [record, { ...record, sufficient_limit_bytes: null }] }), 9 * GIB + 1);
  assert.equal(needed({}), undefined);
  assert.equal(sizeFlag({ kind: "memory", bytes: 18 * GIB }), "--gpu-memory 18GiB");
  assert.equal(sizeFlag({ kind: "shares", count: 2, thousandths: 500 }), "-g 2x0.5");
  assert.equal(sizeFlag(null), undefined);
  assert.equal(requestable(GIB - 5), "1GiB");
  const advice = { memory_limit_bytes: 8 * GIB, memory_bytes: 4 * GIB, runs: 7, denied_runs: 0, amount: {} };
  assert.equal(reason(advice), "4.0 GiB less; no run was refused memory");
  const mixed = { ...advice, denied_runs: 2, memory_bytes: 90 * GIB, amount: null };
  assert.equal(reason(mixed), "82.0 GiB more, but no GPU here has so much; 2 of 7 runs were refused memory");
  assert.equal(
    reason({ ...mixed, memory_bytes: null }),
    "2 of 7 runs were refused memory, so their whole need is unknown",
  );
});

test("facts leave out what says nothing, and what is another user's", () => {
  const job = {
    id: "7",
    name: "x",
    user: "ana",
    queue: "half",
    state: "running",
    request: { kind: "share", thousandths: 500 },
    compute: "fair",
    command: ["python", "a b.py"],
    submitted_at: at(-90),
    started_at: at(-60),
    slices: [
      {
        label: "gpu0.5a",
        gpu_index: 0,
        share: 500,
        memory_limit_bytes: 8 * GIB,
        memory_used_bytes: GIB,
        memory_peak_bytes: GIB,
        processes: 1,
        denials: 0,
        enforcement: "interposer",
      },
    ],
  };
  const shown = new Map(facts(job, now));
  assert.equal(shown.get("state"), "running for 1m00s");
  assert.equal(shown.get("command"), "python 'a b.py'");
  assert.equal(
    shown.get("slice gpu0:0.5a"),
    "0.5 of GPU 0 · limit 8.0 GiB · enforced by the limiter · 1.0 GiB by 1 process, peak so far 1.0 GiB",
  );
  assert.equal(shown.get("compute"), "fair · no other job on its GPUs");
  assert.equal(shown.has("project"), false);
  assert.match(new Map(facts({ ...job, redacted: true, command: [] }, now)).get("command"), /another user/);
  const bare = { slices: [{}], bypasses: [{}], after: [{}], request: {}, container: {} };
  assert.ok(facts(bare, now).every(([, value]) => !/NaN|undefined|null/.test(value)));
});

test("findings and self-tests have the sums of their commands", () => {
  const findings = [{ status: "ok" }, { status: "warn" }, { status: "ok" }];
  assert.deepEqual(total(findings), {
    text: "2 ok, 1 warn, 0 fail: jobs can run here; test their limits with divvy selftest",
    isAlert: false,
  });
  assert.equal(total([{ status: "fail" }]).isAlert, true);
  assert.equal(
    sum({ passed: false, checks: [{ result: "enforced" }, { result: "not_enforced" }] }),
    "1 enforced, 0 agree, 0 not available, 1 failed: the limit does not hold",
  );
  assert.deepEqual([results({ items: [1] }), results([2]), results(null), results({})], [[1], [2], [], []]);
});

test("commands of a hint are found", () => {
  assert.deepEqual(commands("divvy gpus"), ["", "divvy gpus"]);
  assert.deepEqual(commands("`divvy admin mig ls` lists them"), ["", "divvy admin mig ls", " lists them"]);
  assert.deepEqual(commands("use 10"), ["use 10"]);
});
