/** The overview: a card for each GPU, the running jobs, and memory and compute over time. */

import { html, useState } from "../vendor/preact.js";
import { compute, matching, mode, note, peaks, place, reference, sorted, used } from "../lib/board.js";
import { elapsed, gib, isFigure, label, modelName, NONE, share } from "../lib/format.js";
import { room } from "../lib/gpus.js";
import { jobLink } from "../lib/route.js";
import { palette, useNow, useStore } from "../store.js";
import { Main } from "../ui/frame.js";
import { History } from "../ui/history.js";
import { ComputeBar, Legend, MemoryBar, Slots, Table } from "../ui/parts.js";

export function Overview() {
  const board = useStore((state) => state.board);
  return html`<${Main} page="overview" title="Overview" isReady=${board !== undefined}>
    ${!board && html`<p class="quiet">Waiting for the daemon.</p>`}
    ${
      board &&
      html`
      <section aria-labelledby="gpus">
        <div class="heading"><h2 id="gpus">GPUs</h2>${board.gpus.length > 0 && html`<${Key} />`}</div>
        ${board.gpus.length === 0 && html`<p
          class="quiet">The daemon serves no GPU. <code>divvy doctor</code> says why.</p>`}
        <div class=${board.gpus.length > 4 ? "cards dense" : "cards"}>${board.gpus.map((/** @type {any} */ one) => html`<${Gpu} key=${one.index} board=${board}
          gpu=${one} />`)}</div>
      </section>
      <${Jobs} board=${board} />
      <${History} board=${board} />`
    }
  <//>`;
}

/** What the fills of the bars mean. */
function Key() {
  return html`<ul class="legend key" aria-label="Fills of the bars">
    <li><span class="swatch part used c0" aria-hidden="true"></span>used</li>
    <li><span class="swatch part limit c0" aria-hidden="true"></span>allocated, not used</li>
    <li><span class="swatch part free" aria-hidden="true"></span>free</li>
    <li><span class="swatch part outside" aria-hidden="true"></span>outside Divvy</li>
    <li><span class="swatch part elsewhere" aria-hidden="true"></span>another daemon's</li>
  </ul>`;
}

const MODES = /** @type {Record<string, string>} */ ({
  exclusive: "exclusive: whole GPUs only",
  unmanaged: "unmanaged: Divvy places no job here",
  mig: "MIG",
});

/** @param {{ board: any, gpu: any }} props */
function Gpu({ board, gpu }) {
  const figure = (/** @type {unknown} */ value, /** @type {string} */ unit) =>
    isFigure(value) ? `${value} ${unit}` : NONE;
  const title = `gpu-${gpu.index}`;
  return html`<article class="card gpu" data-gpu=${gpu.index} aria-labelledby=${title}>
    <header>
      <h3 id=${title}>GPU ${gpu.index}</h3>
      <span class="quiet">${modelName(gpu.model)}</span>
      ${gpu.mode !== "shared" && html`<span class="chip">${MODES[gpu.mode] ?? label(gpu.mode, 40)}</span>`}
      ${gpu.asleep && html`<span class="chip">asleep</span>`}
    </header>
    ${gpu.problem && html`<p class="alert">! ${label(gpu.problem, 300)}</p>`}
    <div class="meter"><span class="name">Memory</span>
      ${
        gpu.mig
          ? html`<${Slots} mig=${gpu.mig} label=${`MIG slots of GPU ${gpu.index}`} />`
          : html`<${MemoryBar} board=${board} gpu=${gpu} />`
      }
      <span class="figures">
        ${gib(gpu.used_bytes)} used, ${gib(gpu.allocated_bytes)} allocated of ${gib(gpu.usable_bytes)} GiB
      </span></div>
    ${
      !gpu.mig &&
      gpu.mode !== "unmanaged" &&
      html`<div class="meter"><span class="name">Compute</span>
      <${ComputeBar} board=${board} gpu=${gpu} />
      <span class="figures">${share(gpu.share)} allocated</span></div>`
    }
    <${Legend} board=${board} gpu=${gpu} />
    <dl class="readings">
      <div><dt>Util</dt><dd>${figure(gpu.utilization_percent, "%")}</dd></div>
      <div><dt>Temp</dt><dd>${figure(gpu.temperature_celsius, "°C")}</dd></div>
      <div><dt>Power</dt><dd>${figure(gpu.power_watts, "W")}</dd></div>
      ${!gpu.mig && html`<div class="wide"><dt>Free for a job</dt><dd>${room(gpu)}</dd></div>`}
    </dl>
  </article>`;
}

/** The running jobs as a table, in the columns of `divvy top`. */

/** @param {{ board: any }} props */
export function Jobs({ board }) {
  const now = useNow();
  const [text, setText] = useState("");
  const [sort, setSort] = useState({ by: "id", isReversed: false });
  const jobs = sorted(matching(board.jobs, text), sort.by, sort.isReversed);
  const columns = [
    {
      name: "id",
      title: "ID",
      order: "id",
      isFigure: true,
      cell: (/** @type {any} */ job) => html`
      <span class=${`swatch part used c${palette.of(`job:${job.id}`)}`} aria-hidden="true"></span>${" "}
      <a href=${jobLink(reference(job))}>${reference(job)}</a>`,
    },
    { name: "user", title: "User", order: "user", cell: (/** @type {any} */ job) => label(job.user, 40) },
    {
      name: "name",
      title: "Name",
      order: "name",
      className: "name",
      cell: (/** @type {any} */ job) => label(job.name, 60),
    },
    {
      name: "queue",
      title: "Queue",
      order: "queue",
      cell: (/** @type {any} */ job) => label(job.queue ?? "default", 40),
    },
    { name: "on", title: "On", order: "on", cell: place },
    { name: "used", title: "Used/limit GiB", order: "memory", isFigure: true, cell: used },
    { name: "peak", title: "Peak GiB", order: "peak", isFigure: true, cell: peaks },
    { name: "compute", title: "GPU %/of", order: "compute", isFigure: true, cell: compute },
    { name: "mode", title: "Compute", cell: mode },
    {
      name: "for",
      title: "For",
      order: "since",
      isFigure: true,
      cell: (/** @type {any} */ job) => elapsed(job.since, now),
    },
    {
      name: "note",
      title: "Note",
      cell: (/** @type {any} */ job) => {
        const { text: words, isAlert } = note(job, now);
        return words && html`<span class=${isAlert ? "alert" : ""}>${words}</span>`;
      },
    },
  ];
  const onSort = (/** @type {string} */ by) =>
    setSort((before) => ({ by, isReversed: before.by === by && !before.isReversed }));
  const title =
    jobs.length === board.jobs.length ? `Jobs ${jobs.length}` : `Jobs ${jobs.length} of ${board.jobs.length}`;
  return html`<section aria-labelledby="jobs">
    <div class="heading"><h2 id="jobs">${title}</h2>
      <label class="find">Find <input type="search" value=${text} maxlength="120"
        onInput=${(/** @type {any} */ event) => setText(event.target.value)} /></label></div>
    <${Table} caption="Running jobs" columns=${columns} rows=${jobs} rowKey=${(/** @type {any} */ job) => job.id}
      rowProps=${(/** @type {any} */ job) => ({ "data-job": reference(job) })} sort=${sort} onSort=${onSort}
      empty=${board.jobs.length === 0 ? "No job runs." : "No running job matches."} />
  </section>`;
}
