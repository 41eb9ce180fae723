import assert from "node:assert/strict";
import test from "node:test";

import {
  coarse,
  delay,
  Events,
  lines,
  LONGEST,
  LONGEST_LINE,
  matching,
  MOST_LINES,
  Output,
  pieces,
} from "../../assets/lib/stream.js";

test("messages are whole wherever the pieces are cut", () => {
  const text =
    ': comment\n\nevent: board\ndata: {"a":1}\n\nevent: change\r\ndata: one\r\ndata: two\r\n\r\ndata:x\n\nevent: none\n\n';
  const expected = [
    { kind: "board", data: '{"a":1}' },
    { kind: "change", data: "one\ntwo" },
    { kind: "message", data: "x" },
  ];
  for (const size of [1, 2, 3, 7, 1000]) {
    const events = new Events();
    const seen = [];
    for (let at = 0; at < text.length; at += size) seen.push(...events.take(text.slice(at, at + size)));
    assert.deepEqual(seen, expected, `pieces of ${size}`);
  }
});

test("a message without an end is refused", () => {
  const events = new Events();
  assert.throws(() => {
    for (let at = 0; at < 10; at += 1) events.take("x".repeat(LONGEST / 8));
  }, /more than/);
});

const texts = (output) => output.shown().map((line) => line.text);

test("lines are whole wherever the pieces are cut", () => {
  const text = "one\ntwo\r\n10 %\r50 %\r100 %\nred \u001b[31mx\u001b[0m\ttab\nopen";
  const expected = ["one", "two", "100 %", "red x    tab", "open"];
  for (const size of [1, 2, 3, 5, 1000]) {
    const output = new Output();
    for (let at = 0; at < text.length; at += size) output.take(text.slice(at, at + size));
    assert.deepEqual(texts(output), expected, `pieces of ${size}`);
  }
});

test("lines and their lengths are bounded", () => {
  const output = new Output();
  for (let at = 0; at < MOST_LINES + 500; at += 1) output.take(`line ${at}\n`);
  assert.equal(output.shown().length, MOST_LINES);
  assert.deepEqual([output.dropped, output.shown()[0].text, output.shown()[0].number], [500, "line 500", 501]);
  const huge = new Output();
  for (let at = 0; at < 64; at += 1) huge.take("x".repeat(1 << 20));
  const [line] = texts(huge);
  assert.ok(line.length < LONGEST_LINE + 60, String(line.length));
  assert.match(line, /… \(\d+ more characters\)$/);
  assert.equal(Number(/\((\d+)/.exec(line)[1]) + LONGEST_LINE, 64 << 20);
});

test("a line cannot hide what it is", () => {
  const output = new Output().take("\u001b]0;title\u0007<script>alert(1)</script>\u202e\n\u001b[2J\n");
  assert.deepEqual(texts(output), ["\\u{1b}]0;title\\u{7}<script>alert(1)</script>\\u{202e}", "\\u{1b}[2J"]);
});

test("a search marks every place and keeps the text", () => {
  assert.deepEqual(pieces("Loss 0.5, loss", "loss"), ["", "Loss", " 0.5, ", "loss", ""]);
  assert.deepEqual(pieces("a.b", "."), ["a", ".", "b"]);
  assert.deepEqual([pieces("abc", ""), pieces("abc", "x")], [["abc"], ["abc"]]);
  assert.equal(pieces("İİ loss", "loss").join(""), "İİ loss");
  const known = [
    { number: 1, text: "Epoch 1" },
    { number: 2, text: "x" },
  ];
  assert.deepEqual([matching(known, "EPOCH").length, matching(known, "").length], [1, 2]);
});

test("waits grow to ten seconds, and ages are coarse", () => {
  assert.deepEqual(
    [0, 1, 2, 3, 4, 5, 99].map((attempt) => delay(attempt, 0.5)),
    [500, 1000, 2000, 4000, 8000, 10_000, 10_000],
  );
  assert.ok(delay(9, 1) <= 11_000 && delay(0, 0) >= 450);
  assert.deepEqual([0, 4999, 12_345, 61_000, 179_000].map(coarse), [0, 0, 10, 60, 120]);
});

test("documents come one a line", () => {
  assert.deepEqual(lines('{"a":1}\n{"b":"x\\ny"}\n'), [{ a: 1 }, { b: "x\ny" }]);
  assert.deepEqual(lines(""), []);
  assert.throws(() => lines('{"a":1}\n{"b":'));
});
