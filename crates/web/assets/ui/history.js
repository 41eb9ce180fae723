/**
 * Charts of the stored history: of a GPU or of all, stacked by job or by user, and of one job against its limit.
 *
 * The daemon keeps figures of each job. A chart has the jobs with the largest peaks in its time; the rest of the GPU is
 * one more row, so that the sum is the GPU's own figure.
 */

import { html, useMemo, useState } from "../vendor/preact.js";
import { list, one } from "../api.js";
import { reference } from "../lib/board.js";
import { label } from "../lib/format.js";
import { curve, end, grid, grouped, isSeen, joined, on, RANGES, rest, scaled, wholeRun } from "../lib/history.js";
import { largest } from "../lib/route.js";
import { palette, useAnswer } from "../store.js";
import { Refusal } from "./action.js";
import { Chart } from "./chart.js";
import { Choice } from "./parts.js";

const GIB = 2 ** 30;
/** Jobs of a chart. More cannot be told apart. */
const MOST_JOBS = 7;
/**
 * Seconds for which the choice of jobs holds. The daemon keeps eight sorted lists of a user, which pages need too.
 */
const CHOICE = 30;

/** @typedef {import("../lib/history.js").Curve} Curve */

/** @param {{ spans: string[], value: string, onChange: (span: string) => void }} props */
function Span({ spans, value, onChange }) {
  return html`<${Choice} legend="Time" name="span"
    value=${value} options=${spans.map((one) => [one, RANGES[one]?.name ?? "whole run"])}
    onChange=${onChange} />`;
}

/**
 * The figures of a subject, joined with those that are known: after the first look only the newest steps come.
 * @param {string} of @param {{ step: number, seconds: number, until?: number }} range @param {Curve | undefined} known
 * @param {AbortSignal} signal
 */
async function figures(of, range, known, signal) {
  const oldest = Math.floor(range.until ?? Date.now() / 1000) - range.seconds;
  const since = known?.step === range.step ? Math.max(oldest, end(known) - range.step) : oldest;
  const query = new URLSearchParams({ of, step: String(range.step), since: new Date(since * 1000).toISOString() });
  return joined(known, curve(await one(`/v1/history?${query}`, { signal })), oldest);
}

/** The subject of a job's figures on one GPU: the job, or its slice there. @param {any} job @param {number} [gpu] */
function subject(job, gpu) {
  const slices = job.slices ?? [];
  const slice = slices.find((/** @type {any} */ one) => one.gpu_index === gpu);
  return slice && slices.length > 1 ? `slice:${reference(job)}/${slice.label}` : `job:${reference(job)}`;
}

/**
 * The whole and the jobs of a chart.
 * @param {{ seconds: number, step: number }} range
 * @param {number | undefined} gpu
 * @param {AbortSignal} signal
 * @param {any} last
 */
async function look(range, gpu, signal, last) {
  const since = new Date(Date.now() - range.seconds * 1000).toISOString();
  const whole = figures(gpu === undefined ? "node" : `gpu:${gpu}`, range, last?.whole, signal);
  // Its error is thrown below. If the list fails before, the browser must not report it a second time.
  whole.catch(() => undefined);
  const now = Date.now() / 1000;
  const chosen =
    last && now - last.chosen.at < CHOICE
      ? last.chosen
      : { at: now, items: (await list(largest(since, MOST_JOBS, gpu), { signal })).items };
  const jobs = await Promise.all(
    chosen.items
      .filter((/** @type {any} */ job) => job.started_at)
      .map(async (/** @type {any} */ job) => {
        const known = last?.jobs.find((/** @type {any} */ one) => one.job.id === job.id)?.curve;
        // A job may be too young for a figure, or older than the history.
        return { job, curve: await figures(subject(job, gpu), range, known, signal).catch(() => known) };
      }),
  );
  return { at: Date.now() / 1000, whole: await whole, chosen, jobs: jobs.filter((one) => one.curve) };
}

/**
 * Memory in GiB, or compute time in GPUs.
 * @param {any} data @param {boolean} isMemory @param {string} by @param {any} points @param {number} gpus
 * @returns {import("./chart.js").Series[]}
 */
function series(data, isMemory, by, points, gpus) {
  const row = (/** @type {Curve} */ curve, /** @type {string} */ name, /** @type {number} */ unit) =>
    scaled(on(curve, name, points), unit);
  const names = new Map();
  const rows = data.jobs.map((/** @type {any} */ { job, curve }) => {
    const key = by === "job" ? `job:${job.id}` : `user:${job.user}`;
    names.set(key, by === "job" ? `#${reference(job)} ${label(job.name, 24)}` : label(job.user, 40));
    return { key, row: isMemory ? row(curve, "memory_used_bytes", GIB) : row(curve, "share_used", 1000) };
  });
  const known = grouped(rows).filter((one) => isSeen(one.row));
  // The utilisation of the node is the mean of its GPUs.
  const whole = isMemory
    ? row(data.whole, "memory_used_bytes", GIB)
    : row(data.whole, "utilization_percent", 100 / gpus);
  const left = rest(
    whole,
    known.map((one) => one.row),
  );
  // Both charts of the same jobs have the same colours.
  const keys = [...names.keys()];
  const colours = new Map(palette.distinct(keys).map((colour, at) => [keys[at], colour]));
  const all = known.map(({ key, row }) => ({ key, label: names.get(key), colour: colours.get(key), values: row }));
  return isSeen(left) || all.length === 0 ? [...all, { key: "rest", label: "rest", values: left }] : all;
}

/** @param {{ board: any }} props */
export function History({ board }) {
  const [span, setSpan] = useState("1h");
  const [by, setBy] = useState("job");
  const [gpu, setGpu] = useState("all");
  const range = RANGES[span];
  const index = gpu === "all" ? undefined : Number(gpu);
  const { data, error } = useAnswer(`${gpu} ${span}`, (signal, last) => look(range, index, signal, last), {
    every: range.look,
  });
  const gpus = board.gpus.filter((/** @type {any} */ one) => index === undefined || one.index === index);
  const usable = gpus.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + (one.usable_bytes || 0), 0);
  // The board changes each second, the history rarely.
  const charts = useMemo(() => {
    if (!data) return undefined;
    const points = grid(data.at, range);
    return [true, false].map((isMemory) => ({
      times: points.times,
      series: series(data, isMemory, by, points, gpus.length || 1),
    }));
  }, [data, by]);
  return html`<section aria-labelledby="history">
    <div class="heading"><h2 id="history">History</h2>
      <label class="find">GPU <select value=${gpu}
        onChange=${(/** @type {any} */ event) => setGpu(event.target.value)}>
        <option value="all">all</option>
        ${board.gpus.map((/** @type {any} */ one) => html`<option key=${one.index}
          value=${one.index}>${one.index}</option>`)}
      </select></label>
      <${Choice} legend="Stacked by" name="by" value=${by} options=${[
        ["job", "job"],
        ["user", "user"],
      ]} onChange=${setBy} />
      <${Span} spans=${["1h", "24h", "7d"]} value=${span} onChange=${setSpan} />
    </div>
    <${Refusal} error=${error} what="history" />
    ${!charts && !error && html`<p class="quiet">Reading the history.</p>`}
    ${
      charts &&
      html`<div class="cards two">
      <${Chart} name="memory" title="Memory" unit="GiB" digits=${1} most=${usable / GIB} ...${charts[0]} />
      <${Chart} name="compute" title="Compute" unit="GPUs" digits=${2} most=${gpus.length} ...${charts[1]} />
    </div>`
    }
  </section>`;
}

/** Memory of a job against its limit, and GPU time against its share. @param {{ job: any, live: any }} props */
export function Curves({ job, live }) {
  const [span, setSpan] = useState("run");
  const rangeAt = (/** @type {number} */ now) => RANGES[span] ?? wholeRun(job, now);
  const { data, error } = useAnswer(
    `${job.id} ${span}`,
    async (signal, last) => {
      const at = Date.now() / 1000;
      const range = rangeAt(at);
      return { at, range, curve: await figures(`job:${reference(job)}`, range, last?.curve, signal) };
    },
    { every: live ? rangeAt(Date.now() / 1000).look : 0 },
  );
  const charts = useMemo(() => {
    if (!data) return undefined;
    const points = grid(data.range.until ?? data.at, data.range);
    const colour = palette.of(`job:${job.id}`);
    const of = (
      /** @type {string} */ used,
      /** @type {string} */ limit,
      /** @type {string} */ title,
      /** @type {number} */ unit,
    ) => ({
      times: points.times,
      series: [
        { key: "used", label: "used", colour, values: scaled(on(data.curve, used, points), unit) },
        { key: "limit", label: title, values: scaled(on(data.curve, limit, points), unit), isLine: true },
      ],
    });
    return [of("memory_used_bytes", "memory_limit_bytes", "limit", GIB), of("share_used", "share", "share", 1000)];
  }, [data]);
  return html`<section aria-labelledby="curves">
    <div class="heading"><h2 id="curves">Use</h2><${Span} spans=${["run", "10m", "1h", "6h", "7d"]} value=${span}
      onChange=${setSpan} /></div>
    <${Refusal} error=${error} what="history" />
    ${
      charts &&
      html`<div class="cards two">
      <${Chart} name="memory" title="Memory against the limit" unit="GiB" digits=${1} ...${charts[0]} />
      <${Chart} name="compute" title="GPU time against the share" unit="GPUs" digits=${2} ...${charts[1]} />
    </div>`
    }
  </section>`;
}
