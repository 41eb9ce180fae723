/** Users and projects: what is allocated now, and GPU hours allocated, used and due over 7 or 30 days, also as CSV. */

import { html, useMemo } from "../vendor/preact.js";
import { list } from "../api.js";
import { energy, gib, hours, label, NONE, percentOf, share } from "../lib/format.js";
import { format } from "../lib/route.js";
import { days as daysOf, due, rows, sheet, startOf, table as csv } from "../lib/usage.js";
import { say, useAnswer, useStore } from "../store.js";
import { Command, Refusal } from "../ui/action.js";
import { Main } from "../ui/frame.js";
import { Choice, Table } from "../ui/parts.js";

const PERIODS = /** @type {const} */ ([
  ["7", "7 days"],
  ["30", "30 days"],
]);

/** @param {{ query: Record<string, string> }} props */
export function People({ query }) {
  const board = useStore((state) => state.board);
  const count = query.days === "30" ? 30 : 7;
  const days = daysOf(Date.now(), count);
  const { data, error } = useAnswer(`${count} ${days[0]}`, (signal) => read(days, signal), { every: 120 });
  const projects = useAnswer("projects", async (signal) => (await list("/v1/projects", { signal })).items, {
    every: 15,
  });
  const isReady = board !== undefined && (data !== undefined || error !== undefined);
  return html`<${Main} page="people" title="Users and projects" isReady=${isReady}>
    ${board && html`<${Now} board=${board} projects=${projects.data ?? []} />`}
    <${Refusal} error=${projects.error} what="projects" />
    <section aria-labelledby="hours">
      <div class="heading"><h2 id="hours">GPU hours</h2>
        <${Choice} legend="Time" name="days" value=${String(count)} options=${PERIODS}
          onChange=${(/** @type {string} */ value) => {
            location.hash = format("people", { days: value });
          }} /></div>
      <p class="quiet">Allocated: what jobs held, used or not. Used: kernels of the jobs ran. Loaned: used beyond the jobs' shares.
        Due: the project's quota over the same time. Without the role operator, the hours are your own.</p>
      ${error && html`<${Refusal} error=${error} />`}
      ${!data && !error && html`<p class="quiet">Waiting for the daemon.</p>`}
      ${
        data &&
        html`
        <${Hours} title="Users" keyName="user" rows=${data.users} days=${days} />
        <${Hours} title="Projects" keyName="project" rows=${withDue(data.projects, projects.data ?? [], count)}
          days=${days} />`
      }
      <p>The same: <${Command} text=${`divvy usage --by user --since ${count}d`} /></p>
    </section>
  <//>`;
}

/** @param {string[]} days @param {AbortSignal} signal */
async function read(days, signal) {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  const ask = async (/** @type {string} */ by) =>
    (await list(`/v1/usage?${new URLSearchParams({ by, since: startOf(days[0]), zone })}`, { signal })).items;
  const [users, dailyUsers, projects, dailyProjects] = await Promise.all(
    ["user", "day,user", "project", "day,project"].map(ask),
  );
  return { users: rows(users, dailyUsers, "user", days), projects: rows(projects, dailyProjects, "project", days) };
}

/** @param {import("../lib/usage.js").Row[]} all @param {any[]} projects @param {number} count */
function withDue(all, projects, count) {
  return all.map((row) => ({ ...row, due: due(projects.find((one) => one.name === row.name)?.quota, count) }));
}

/** What users and projects hold now. @param {{ board: any, projects: any[] }} props */
function Now({ board, projects }) {
  const known = new Map(projects.map((one) => [one.name, one]));
  const shares = [
    ...board.users.map((/** @type {any} */ one) => ({ ...one, kind: "user" })),
    ...board.projects.map((/** @type {any} */ one) => ({ ...one, kind: "project", known: known.get(one.name) })),
  ];
  const cell = (/** @type {(one: any) => any} */ of) => of;
  const columns = [
    { name: "kind", title: "Kind", cell: cell((one) => one.kind) },
    {
      name: "name",
      title: "Name",
      className: "name",
      cell: cell((one) => html`<a href=${format("queue", { [one.kind]: one.name })}>${label(one.name, 60)}</a>`),
    },
    { name: "run", title: "Run", isFigure: true, cell: cell((one) => one.running) },
    { name: "wait", title: "Wait", isFigure: true, cell: cell((one) => one.waiting) },
    { name: "gpus", title: "GPUs allocated", isFigure: true, cell: cell((one) => share(one.share)) },
    { name: "busy", title: "Busy", isFigure: true, cell: cell((one) => share(one.share_used)) },
    { name: "due", title: "Due now", isFigure: true, cell: cell((one) => share(one.known?.fair_share)) },
    { name: "quota", title: "Quota", isFigure: true, cell: cell((one) => share(one.quota)) },
    {
      name: "limit",
      title: "Limit",
      isFigure: true,
      cell: cell((one) => (one.known ? (one.known.limit === null ? "none" : share(one.known.limit)) : NONE)),
    },
    {
      name: "memory",
      title: "GiB used/limit",
      isFigure: true,
      cell: cell((one) => gib(one.used_bytes, one.limit_bytes)),
    },
  ];
  return html`<section aria-labelledby="now"><h2 id="now">Now</h2>
    <${Table} caption="Users and projects with jobs" columns=${columns} rows=${shares}
      rowKey=${(/** @type {any} */ one) => `${one.kind}:${one.name}`} empty="No user has a job." /></section>`;
}

/**
 * @param {{ title: string, keyName: "user" | "project", rows: import("../lib/usage.js").Row[], days: string[] }}
 *   props
 */
function Hours({ title, keyName, rows: all, days }) {
  const most = useMemo(() => Math.max(1, ...all.flatMap((row) => row.days)), [all]);
  const largest = Math.max(1, ...all.map((row) => row.held));
  const columns = [
    {
      name: "name",
      title: keyName === "user" ? "User" : "Project",
      className: "name",
      cell: (/** @type {any} */ row) =>
        row.name === "" && keyName === "project" ? "no project" : label(row.name, 60),
    },
    { name: "jobs", title: "Jobs", isFigure: true, cell: (/** @type {any} */ row) => row.jobs },
    { name: "held", title: "Allocated", isFigure: true, cell: (/** @type {any} */ row) => hours(row.held) },
    { name: "used", title: "Used", isFigure: true, cell: (/** @type {any} */ row) => hours(row.used) },
    ...(keyName === "project"
      ? [{ name: "due", title: "Due", isFigure: true, cell: (/** @type {any} */ row) => hours(row.due) }]
      : []),
    { name: "idle", title: "Idle", isFigure: true, cell: (/** @type {any} */ row) => hours(row.idle) },
    { name: "loaned", title: "Loaned", isFigure: true, cell: (/** @type {any} */ row) => hours(row.loaned) },
    {
      name: "energy",
      title: "Energy",
      isFigure: true,
      cell: (/** @type {any} */ row) => energy(row.energy, row.estimated) || NONE,
    },
    {
      name: "of",
      title: "Of machine",
      isFigure: true,
      cell: (/** @type {any} */ row) => percentOf(row.held, row.capacity),
    },
    {
      name: "bar",
      title: "Allocated and used",
      className: "wide",
      cell: (/** @type {any} */ row) => html`<${Hold} row=${row} most=${largest} />`,
    },
    {
      name: "days",
      title: `Days from ${days[0].slice(5)}`,
      cell: (/** @type {any} */ row) => html`<${Days} days=${row.days} names=${days} most=${most} />`,
    },
  ];
  return html`<div class="heading"><h3>${title}</h3>
      <button type="button" class="small" data-csv=${keyName} disabled=${all.length === 0}
        onClick=${() => save(`divvy-${keyName}-${days[0]}.csv`, csv(sheet(all, keyName, days)))}>Download CSV</button></div>
    <${Table} caption=${`GPU hours of ${title.toLowerCase()}`} columns=${columns} rows=${all}
      rowKey=${(/** @type {any} */ row) => row.name} empty="No GPU time in these days." />`;
}

/** @param {{ row: any, most: number }} props */
function Hold({ row, most }) {
  const width = (/** @type {number} */ part) => ({ width: `${Math.min(100, (part * 100) / most)}%` });
  const used = Math.min(row.used, row.held);
  return html`<div class="bar thin" role="img" aria-label=${`allocated ${hours(row.held)}, used ${hours(row.used)} hours`}>
    <span class="part used c0" style=${width(used)}></span><span class="part limit c0"
      style=${width(row.held - used)}></span>
  </div>`;
}

/** @param {{ days: number[], names: string[], most: number }} props */
function Days({ days, names, most }) {
  const words = days.map((ms, at) => `${names[at].slice(5)}: ${hours(ms)}`).join(", ");
  return html`<div class="days" role="img" aria-label=${`hours by day: ${words}`}>
    ${days.map((ms, at) => html`<span key=${at} title=${`${names[at]}: ${hours(ms)} h`}
      style=${{ height: `${Math.max(ms > 0 ? 6 : 0, (ms * 100) / most)}%` }}></span>`)}
  </div>`;
}

/** @param {string} name @param {string} text */
function save(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
  say(`saved ${name}`);
}
