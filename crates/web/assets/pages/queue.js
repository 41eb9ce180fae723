/** The queue: pages of 100 waiting jobs from the daemon, each with its reason, and on demand `why` and actions. */

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { list } from "../api.js";
import { actionsFor, move } from "../lib/actions.js";
import { reference } from "../lib/board.js";
import { start } from "../lib/explain.js";
import { amount, count, elapsed, label, words } from "../lib/format.js";
import { filter as filterOf, FILTERS, format, jobLink, PAGE, places, waiting } from "../lib/route.js";
import { useAnswer, useNow, useStore } from "../store.js";
import { ActionButton, Actions, Refusal, Why } from "../ui/action.js";
import { Main } from "../ui/frame.js";
import { Table } from "../ui/parts.js";

const FIRST = {
  after: /** @type {string | undefined} */ (undefined),
  seen: /** @type {Record<string, number>} */ ({}),
  shown: 0,
};

/** @param {{ query: Record<string, string> }} props */
export function Queue({ query }) {
  const filter = filterOf(query);
  const key = JSON.stringify(filter);
  const now = useNow();
  const board = useStore((state) => state.board);
  // The pages so far: each begins after the last job of the one before. Another filter begins anew.
  const [kept, setKept] = useState({ key, pages: [FIRST] });
  const pages = kept.key === key ? kept.pages : [FIRST];
  const setPages = (/** @type {typeof FIRST[]} */ pages) => setKept({ key, pages });
  const [open, setOpen] = useState(/** @type {string | undefined} */ (undefined));
  const page = pages[pages.length - 1];
  const path = waiting(filter, page.after);
  const { data, error, again } = useAnswer(path, (signal) => list(path, { signal }), {
    on: board?.waiting,
    least: 10,
  });
  useEffect(() => {
    // The daemon has forgotten the order of these pages.
    if (error?.code === "gone") setPages([FIRST]);
  }, [error]);
  const { rows, seen } = places(data?.items ?? [], page.seen, filter);
  const first = new Map((board?.waiting.first ?? []).map((/** @type {any} */ job) => [String(job.id), job]));
  const next = data?.next;
  const more = () => setPages([...pages, { after: next, seen, shown: page.shown + rows.length }]);
  return html`<${Main} page="queue" title="Queue" isReady=${data !== undefined || error !== undefined}>
    <${Reasons} board=${board} />
    <${Filters} filter=${filter} board=${board} />
    ${error && html`<${Refusal} error=${error} />`}
    ${
      data &&
      html`
      <${Table} caption="Waiting jobs" rows=${rows} rowKey=${(/** @type {any} */ row) => row.job.id}
        columns=${columns(now, first, open, setOpen)}
        rowProps=${(/** @type {any} */ row) => ({ "data-job": reference(row.job) })}
        below=${(/** @type {any} */ row) =>
          row.job.id === open && html`<${Detail} job=${row.job} queues=${board?.queues ?? []} onDone=${again} />`}
        empty=${Object.keys(filter).length > 0 ? "No waiting job matches." : "No job waits."} />
      <nav class="pager" aria-label="Pages of the queue">
        <button type="button" disabled=${pages.length === 1}
          onClick=${() => setPages(pages.slice(0, -1))}>Back</button>
        <span aria-live="polite">${
          rows.length > 0 ? `${page.shown + 1} to ${page.shown + rows.length} of ${data.total}` : "0 jobs"
        }</span>
        <button type="button" disabled=${next === undefined} onClick=${more}>Next ${PAGE}</button>
      </nav>`
    }
  <//>`;
}

/** Waiting jobs by reason. @param {{ board: any }} props */
function Reasons({ board }) {
  if (!board) return null;
  const reasons = Object.entries(board.waiting.reasons ?? {});
  return html`<p class="summary wide"><strong>${count(board.waiting.count, "job waits", "jobs wait")}</strong>
    ${reasons.map(([code, number]) => html`<span key=${code}>${number} ${label(words(code), 40)}</span>`)}</p>`;
}

/** @param {{ filter: import("../lib/route.js").Filter, board: any }} props */
function Filters({ filter, board }) {
  const [typed, setTyped] = useState(filter);
  const timer = useRef(0);
  const key = JSON.stringify(filter);
  useEffect(() => setTyped(filter), [key]);
  const change = (/** @type {string} */ name, /** @type {string} */ value, /** @type {number} */ wait) => {
    const next = { ...typed, [name]: value };
    setTyped(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      location.hash = format("queue", filterOf(next));
    }, wait);
  };
  const field = (/** @type {typeof FILTERS[number]} */ name, /** @type {string} */ title) => html`<label>${title}
    <input type="search" name=${name} maxlength="200" value=${typed[name] ?? ""} autocomplete="off"
      onInput=${(/** @type {any} */ event) => change(name, event.target.value, 400)} /></label>`;
  return html`<form class="filters" role="search" aria-label="Filter the queue"
    onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
    ${field("text", "Text")}${field("user", "User")}${field("project", "Project")}
    <label>Queue <select value=${typed.queue ?? ""}
      onChange=${(/** @type {any} */ event) => change("queue", event.target.value, 0)}>
      <option value="">all</option>
      ${(board?.queues ?? []).map(
        (/** @type {any} */ one) => html`<option key=${one.name} value=${one.name}>
        ${label(one.name, 60)} (${one.waiting})</option>`,
      )}
    </select></label>
    ${Object.keys(filter).length > 0 && html`<a class="button" href=${format("queue")}>Clear</a>`}
  </form>`;
}

/**
 * @param {number} now @param {Map<string, any>} first The first jobs of the board, with their starts.
 * @param {string | undefined} open @param {(id: string | undefined) => void} setOpen
 */
function columns(now, first, open, setOpen) {
  const cell = (/** @type {(job: any, row: any) => any} */ of) => (/** @type {any} */ row) => of(row.job, row);
  return [
    { name: "place", title: "Place", isFigure: true, cell: cell((_job, row) => row.place ?? "–") },
    {
      name: "id",
      title: "ID",
      isFigure: true,
      cell: cell((job) => html`<a href=${jobLink(reference(job))}>${reference(job)}</a>`),
    },
    { name: "user", title: "User", cell: cell((job) => label(job.user, 40)) },
    { name: "name", title: "Name", className: "name", cell: cell((job) => label(job.name, 60)) },
    { name: "queue", title: "Queue", cell: cell((job) => label(job.queue ?? "default", 40)) },
    { name: "request", title: "Request", cell: cell((job) => amount(job.request)) },
    { name: "for", title: "For", isFigure: true, cell: cell((job) => elapsed(job.since ?? job.submitted_at, now)) },
    {
      name: "reason",
      title: "Reason",
      className: "reason",
      cell: cell((job) => label(job.reason ?? words(job.reason_code), 200)),
    },
    { name: "start", title: "Start", cell: cell((job) => start({ ...first.get(String(job.id)), ...job }, now)) },
    {
      name: "more",
      title: "Why",
      cell: cell(
        (job) => html`<button type="button" class="small" aria-expanded=${open === job.id ? "true" : "false"}
      aria-label=${`Why #${reference(job)} waits, and actions`}
        onClick=${() => setOpen(open === job.id ? undefined : job.id)}>Why</button>`,
      ),
    },
  ];
}

/** @param {{ job: any, queues: any[], onDone: () => void }} props */
function Detail({ job, queues, onDone }) {
  const id = reference(job);
  const others = queues.filter((one) => one.name !== (job.queue ?? "default"));
  const [queue, setQueue] = useState("");
  const chosen = others.some((one) => one.name === queue) ? queue : others[0]?.name;
  return html`<div class="detail">
    <${Why} job=${id} level="h2" />
    <${Actions} actions=${actionsFor({ ...job, state: "queued" })} owner=${job.user} onDone=${onDone}>
      ${
        chosen &&
        html`<label class="inline">Queue <select value=${chosen}
          onChange=${(/** @type {any} */ event) => setQueue(event.target.value)}>
          ${others.map((one) => html`<option key=${one.name} value=${one.name}>${label(one.name, 60)}</option>`)}
        </select></label>
        <${ActionButton} action=${move(id, chosen)} owner=${job.user} text="Move" onDone=${onDone} />`
      }
    <//>
  </div>`;
}
