import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import test from "node:test";

const assets = new URL("../../assets/", import.meta.url);
const sources = readdirSync(assets, { recursive: true })
  .map(String)
  .filter((name) => /\.(js|html|css)$/.test(name) && !name.startsWith("vendor"))
  .map((name) => ({ name, text: readFileSync(new URL(name, assets), "utf8") }));

test("texts reach the page as text nodes only", () => {
  const ways = [
    /innerHTML|outerHTML|insertAdjacentHTML|dangerouslySet|DOMParser|srcdoc/,
    /document\.write|createContextualFragment|setHTML/,
    /\beval\(|new Function|setTimeout\(["'`]/,
    /javascript:/i,
    /<\w[^>]*\son\w+="/,
  ];
  assert.ok(sources.length > 20, "the modules are there");
  for (const { name, text } of sources) for (const way of ways) assert.doesNotMatch(text, way, name);
});

test("every link stays inside the page", () => {
  const targets = sources.flatMap(({ name, text }) =>
    [...text.matchAll(/<a\b[^>]*?\shref=(\S+)/g)].map((found) => ({ name, target: found[1] })),
  );
  assert.ok(targets.length >= 8, String(targets.length));
  for (const { name, target } of targets) {
    assert.match(target, /^("#main"|\$\{(format|jobLink)\()/, `${name}: ${target}`);
  }
});

test("the document has no script and no style of its own, and loads nothing from elsewhere", () => {
  const [html] = sources.filter(({ name }) => name === "index.html");
  assert.doesNotMatch(html.text, /<style|\sstyle=|<script(?![^>]*\ssrc=)/);
  for (const { name, text } of sources.filter(({ name }) => !name.endsWith(".js"))) {
    assert.doesNotMatch(text, /(?:src|href)="(?!\/assets\/|data:|#)|@import|url\(/, name);
  }
});
