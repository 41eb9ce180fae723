/**
 * The queue: pages of 100 pending jobs from the daemon, each with its reason, and on demand `why` and actions. The
 * pending tasks of an array are one row, until the reader wants each.
 */

import { html, useEffect, useState } from "../vendor/preact.js";
import { list } from "../api.js";
import { actionsFor, move } from "../lib/actions.js";
import { folded, reference } from "../lib/board.js";
import { start } from "../lib/explain.js";
import { amount, count, elapsed, label, words } from "../lib/format.js";
import { filter as filterOf, FILTERS, format, jobLink, PAGE, places, waiting } from "../lib/route.js";
import { useAnswer, useNow, useStore } from "../store.js";
import { ActionButton, Actions, Refusal, Why } from "../ui/action.js";
import { Field, Filters, QueueField } from "../ui/filters.js";
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
  const hasTasks = query.tasks === "true";
  const key = JSON.stringify([filter, hasTasks]);
  const now = useNow();
  const board = useStore((state) => state.board);
  // The pages so far: each begins after the last job of the one before. Another filter begins anew.
  const [kept, setKept] = useState({ key, pages: [FIRST] });
  const pages = kept.key === key ? kept.pages : [FIRST];
  const setPages = (/** @type {typeof FIRST[]} */ pages) => setKept({ key, pages });
  const [open, setOpen] = useState(/** @type {string | undefined} */ (undefined));
  const page = pages[pages.length - 1];
  const path = waiting(filter, page.after, hasTasks);
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
    <${Filters} page="queue" label="Filter the queue" names=${[...FILTERS, "tasks"]} query=${query}>
      ${(/** @type {import("../ui/filters.js").Change} */ fields) => html`
        <${Field} fields=${fields} name="text" title="Text" /><${Field} fields=${fields} name="user" title="User" />
        <${Field} fields=${fields} name="project" title="Project" /><${QueueField} fields=${fields} />
        <label class="inline"><input type="checkbox" name="tasks" checked=${hasTasks}
          onChange=${(/** @type {any} */ event) => fields.change("tasks", event.target.checked ? "true" : "", 0)} />
          Each task of arrays</label>`}
    <//>
    ${error && html`<${Refusal} error=${error} />`}
    ${
      data &&
      html`
      <${Table} caption="Pending jobs" rows=${rows} rowKey=${(/** @type {any} */ row) => row.job.id}
        columns=${columns(now, first, open, setOpen)}
        rowProps=${(/** @type {any} */ row) => ({ "data-job": reference(row.job) })}
        below=${(/** @type {any} */ row) =>
          row.job.id === open && html`<${Detail} job=${row.job} queues=${board?.queues ?? []} onDone=${again} />`}
        empty=${Object.keys(filter).length > 0 ? "No pending job matches." : "No job waits."} />
      <nav class="pager" aria-label="Pages of the queue">
        <button type="button" disabled=${pages.length === 1}
          onClick=${() => setPages(pages.slice(0, -1))}>Back</button>
        <span aria-live="polite">${
          rows.length > 0 ? `${page.shown + 1} to ${page.shown + rows.length} of ${data.rows}` : "0 jobs"
        }</span>
        <button type="button" disabled=${next === undefined} onClick=${more}>Next ${PAGE}</button>
      </nav>`
    }
  <//>`;
}

/** Pending jobs by reason. @param {{ board: any }} props */
function Reasons({ board }) {
  if (!board) return null;
  const reasons = Object.entries(board.waiting.reasons ?? {});
  return html`<p class="summary wide"><strong>${count(board.waiting.count, "job waits", "jobs wait")}</strong>
    ${reasons.map(([code, number]) => html`<span key=${code}>${number} ${label(words(code), 40)}</span>`)}</p>`;
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
      cell: cell((job) => html`<a href=${jobLink(reference(job))}>${folded(job).reference}</a>`),
    },
    { name: "user", title: "User", cell: cell((job) => label(job.user, 40)) },
    { name: "name", title: "Name", className: "name", cell: cell((job) => label(folded(job).name, 60)) },
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
    ${
      job.folded &&
      html`<p>${`${folded(job).reference} stands for ${count(job.folded.count, "task")}; what follows is about ${id}. `}
        <a href=${format("queue", { text: `${folded(job).name}[`, tasks: "true" })}>Show each task</a></p>`
    }
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
