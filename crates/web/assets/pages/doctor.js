/**
 * Doctor and selftest: the findings as the commands print them, or the commands where only a terminal can run them.
 */

import { html, useState } from "../vendor/preact.js";
import { call, Refused } from "../api.js";
import { failures, results, sum, total } from "../lib/facts.js";
import { clean, count, label, memory } from "../lib/format.js";
import { say, useAnswer } from "../store.js";
import { Command, Refusal, useRefusal } from "../ui/action.js";
import { Main } from "../ui/frame.js";
import { Table } from "../ui/parts.js";

export function Doctor() {
  const { data, error, isAsking, again } = useAnswer("doctor", async (signal) =>
    results(await (await call("/web/doctor", { signal, patience: 60_000 })).json()),
  );
  const isAbsent = error instanceof Refused && error.status === 404;
  return html`<${Main} page="doctor" title="Doctor" isReady=${data !== undefined || error !== undefined}>
    <section aria-labelledby="findings">
      <div class="heading"><h2 id="findings">Findings</h2>
        ${!isAbsent && html`<button type="button" class="small" onClick=${again}
          disabled=${isAsking}>${isAsking ? "Looking" : "Look again"}</button>`}</div>
      ${isAbsent && html`<p>The checks look at a machine from a user's own processes, so a terminal runs them:</p>`}
      ${!isAbsent && !data && !error && html`<p class="quiet">The checks run.</p>`}
      ${error && !isAbsent && html`<${Refusal} error=${error} />`}
      ${data && html`<p class=${total(data).isAlert ? "alert" : ""}>${total(data).text}</p><${Findings} all=${data} />`}
      <p><${Command} text="divvy doctor" /></p>
    </section>
    <${Selftest} isAbsent=${isAbsent} />
  <//>`;
}

/** @param {{ all: any[] }} props */
function Findings({ all }) {
  const columns = [
    {
      name: "status",
      title: "Status",
      cell: (/** @type {any} */ one) =>
        html`<span class=${`status ${label(one.status, 10)}`}>${label(one.status, 10)}</span>`,
    },
    { name: "check", title: "Check", cell: (/** @type {any} */ one) => html`<code>${label(one.check, 80)}</code>` },
    {
      name: "found",
      title: "Found",
      className: "reason",
      cell: (/** @type {any} */ one) => html`${label(one.found, 500)}
      ${one.means && html`<p class="quiet">${label(one.means, 500)}</p>`}
      ${one.fix && html`<p><strong>${"do: "}</strong>${label(one.fix, 500)}</p>`}`,
    },
  ];
  return html`<${Table} caption="Findings of the doctor" columns=${columns} rows=${all}
    rowKey=${(/** @type {any} */ one) => one.check}
    empty="The doctor found nothing to report." />`;
}

/** @param {{ isAbsent: boolean }} props */
function Selftest({ isAbsent }) {
  const [tests, setTests] = useState(/** @type {any[] | undefined} */ (undefined));
  const [error, setError] = useState(/** @type {any} */ (undefined));
  const [step, setStep] = useState(/** @type {"" | "asked" | "runs"} */ (""));
  const off = useRefusal("selftest");
  const why = isAbsent ? "a terminal runs it" : off;
  const run = async () => {
    setStep("runs");
    setError(undefined);
    try {
      setTests(results(await (await call("/web/selftest", { method: "POST", patience: 300_000 })).json()));
      say("the self-test is complete");
    } catch (failure) {
      setError(failure);
    }
    setStep("");
  };
  return html`<section aria-labelledby="selftest"><h2 id="selftest">Self-test</h2>
    <p>A program takes a small slice and tries to exceed its limit in every known way.</p>
    <div class="row">
      ${
        step !== "asked" &&
        html`<button type="button" data-action="selftest" data-command="divvy selftest" data-why=${why}
        aria-disabled=${why || step === "runs" ? "true" : undefined} title=${why ?? "divvy selftest"}
        onClick=${() => (why ? say(`not possible: ${why}`) : step === "" && setStep("asked"))}>
        ${step === "runs" ? "The self-test runs" : "Run the self-test"}</button>`
      }
      ${
        step === "asked" &&
        html`<button type="button" class="primary" data-confirm="selftest" onClick=${run}>Run it now</button>
        <button type="button" onClick=${() => setStep("")}>Back</button>`
      }
      <${Command} text="divvy selftest" />
    </div>
    ${why && html`<p class="quiet">Off here: ${why}.</p>`}
    <${Refusal} error=${error} />
    ${(tests ?? []).map((test) => html`<${Test} key=${test.gpu_uuid} test=${test} />`)}
  </section>`;
}

/** @param {{ test: any }} props */
function Test({ test }) {
  const columns = [
    { name: "name", title: "Check", cell: (/** @type {any} */ one) => label(one.name, 80) },
    {
      name: "result",
      title: "Result",
      cell: (/** @type {any} */ one) => html`<span class=${failures.has(one.result) ? "alert" : ""}>
      ${failures.has(one.result) ? "! " : ""}${clean(one.result).replaceAll("_", " ")}</span>`,
    },
    {
      name: "got",
      title: "Got",
      isFigure: true,
      cell: (/** @type {any} */ one) => (one.got_bytes === null ? "–" : memory(one.got_bytes)),
    },
    {
      name: "detail",
      title: "Note",
      className: "reason",
      cell: (/** @type {any} */ one) => label(one.detail || " ", 300),
    },
  ];
  return html`<h3>GPU ${test.gpu_index} ${label(test.model, 60)}${test.simulated ? ", simulated" : ""}</h3>
    <p>Limit ${memory(test.memory_limit_bytes)}, ${count((test.checks ?? []).length, "check")}: <strong
      class=${test.passed ? "" : "alert"}>${sum(test)}</strong></p>
    <${Table} caption=${`Self-test of GPU ${test.gpu_index}`} columns=${columns} rows=${test.checks ?? []}
      rowKey=${(/** @type {any} */ one) => `${one.kind} ${one.name}`} />`;
}
