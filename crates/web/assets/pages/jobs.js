/** Ended jobs: pages of 100, the last end first, with the filters of `divvy ps -a`. */

import { html, useEffect, useMemo, useState } from "../vendor/preact.js";
import { list } from "../api.js";
import { reference } from "../lib/board.js";
import { amount, elapsed, isFigure, label, memories, moment, NONE, state, words } from "../lib/format.js";
import { AGES, ended, ENDED_FILTERS, ENDS, filter as filterOf, jobLink, PAGE } from "../lib/route.js";
import { useAnswer, useNow, useStore } from "../store.js";
import { Refusal } from "../ui/action.js";
import { Field, Filters, QueueField, Select } from "../ui/filters.js";
import { Main } from "../ui/frame.js";
import { Table } from "../ui/parts.js";

const FIRST = { after: /** @type {string | undefined} */ (undefined), shown: 0 };

/** @param {{ query: Record<string, string> }} props */
export function Jobs({ query }) {
  const filter = filterOf(query, ENDED_FILTERS);
  const key = JSON.stringify(filter);
  const now = useNow();
  // The end of the period stays as long as the filter: another one would be another list, without its next pages.
  const at = useMemo(() => Date.now(), [key]);
  const lastEvent = useStore((state) => state.board?.last_event);
  const [kept, setKept] = useState({ key, pages: [FIRST] });
  const pages = kept.key === key ? kept.pages : [FIRST];
  const page = pages[pages.length - 1];
  const setPages = (/** @type {typeof FIRST[]} */ pages) => setKept({ key, pages });
  const path = ended(filter, at, page.after);
  const { data, error } = useAnswer(path, (signal) => list(path, { signal }), { on: lastEvent, least: 10 });
  useEffect(() => {
    // The daemon has forgotten the order of these pages.
    if (error?.code === "gone") setPages([FIRST]);
  }, [error]);
  const rows = data?.items ?? [];
  const isFiltered = Object.keys(filter).length > 0;
  const next = data?.next;
  return html`<${Main} page="jobs" title="Ended jobs" isReady=${data !== undefined || error !== undefined}>
    <${Filters} page="jobs" label="Filter the ended jobs" names=${ENDED_FILTERS} query=${query}>
      ${(/** @type {import("../ui/filters.js").Change} */ fields) => html`
        <${Select} fields=${fields} name="state" title="End" options=${ENDS.map((end) => [end, words(end)])} />
        <${Field} fields=${fields} name="user" title="User" /><${Field} fields=${fields} name="name" title="Name" />
        <${Field} fields=${fields} name="project" title="Project" /><${QueueField} fields=${fields} />
        <${Select} fields=${fields} name="since" title="Ended within"
          options=${AGES.map(([age, title]) => [age, title])} />`}
    <//>
    ${error && error.code !== "gone" && html`<${Refusal} error=${error} />`}
    ${!data && !error && html`<p class="quiet">Waiting for the daemon.</p>`}
    ${
      data &&
      html`<${Table} caption="Ended jobs" rows=${rows} columns=${columns(now)}
        rowKey=${(/** @type {any} */ job) => job.id}
        rowProps=${(/** @type {any} */ job) => ({ "data-job": reference(job) })}
        empty=${isFiltered ? "No ended job matches." : "No job has ended."} />
      <nav class="pager" aria-label="Pages of the ended jobs">
        <button type="button" disabled=${pages.length === 1}
          onClick=${() => setPages(pages.slice(0, -1))}>Back</button>
        <span aria-live="polite">${
          rows.length > 0 ? `${page.shown + 1} to ${page.shown + rows.length} of ${data.total}` : "0 jobs"
        }</span>
        <button type="button" disabled=${next === undefined}
          onClick=${() => setPages([...pages, { after: next, shown: page.shown + rows.length }])}>Next ${PAGE}</button>
      </nav>`
    }
  <//>`;
}

/** @param {number} now */
function columns(now) {
  const sum = (/** @type {any} */ job, /** @type {string} */ name) =>
    (job.slices ?? []).reduce((/** @type {number} */ all, /** @type {any} */ one) => all + (one[name] ?? 0), 0);
  return [
    {
      name: "id",
      title: "ID",
      isFigure: true,
      cell: (/** @type {any} */ job) => html`<a href=${jobLink(reference(job))}>${reference(job)}</a>`,
    },
    { name: "user", title: "User", cell: (/** @type {any} */ job) => label(job.user, 40) },
    { name: "name", title: "Name", className: "name", cell: (/** @type {any} */ job) => label(job.name, 60) },
    { name: "queue", title: "Queue", cell: (/** @type {any} */ job) => label(job.queue ?? "default", 40) },
    { name: "request", title: "Request", cell: (/** @type {any} */ job) => amount(job.request) },
    {
      name: "state",
      title: "State",
      cell: (/** @type {any} */ job) =>
        html`<span class=${job.end_reason === "completed" ? "" : "alert"}>${state(job)}</span>`,
    },
    { name: "started", title: "Started", cell: (/** @type {any} */ job) => moment(job.started_at, now) },
    { name: "ended", title: "Ended", cell: (/** @type {any} */ job) => moment(job.ended_at, now) },
    {
      name: "elapsed",
      title: "Elapsed",
      isFigure: true,
      cell: (/** @type {any} */ job) =>
        job.started_at ? elapsed(job.started_at, Date.parse(job.ended_at)) : NONE,
    },
    {
      name: "peak",
      title: "Peak/limit",
      isFigure: true,
      cell: (/** @type {any} */ job) => {
        const limit = sum(job, "memory_limit_bytes");
        return isFigure(limit) && limit > 0 ? memories([sum(job, "memory_peak_bytes"), limit]) : NONE;
      },
    },
    {
      name: "reason",
      title: "Reason",
      className: "reason",
      cell: (/** @type {any} */ job) => (job.reason ? label(job.reason, 200) : ""),
    },
  ];
}
