/** One job: figures, memory and compute over time, output, refused memory, advice, events, facts. */

import { html, useState } from "../vendor/preact.js";
import { list, one } from "../api.js";
import { actionsFor, resize } from "../lib/actions.js";
import { peaks, reference, shareUsed, sum, used } from "../lib/board.js";
import { needed, reason, refusal, requestable, sentence, sizeFlag } from "../lib/explain.js";
import { efficiency, facts } from "../lib/facts.js";
import { count, elapsed, label, memories, memory, share, state } from "../lib/format.js";
import { Log } from "./log.js";
import { useAnswer, useNow, useStore } from "../store.js";
import { ActionButton, Actions, Command, Refusal, Why } from "../ui/action.js";
import { Main } from "../ui/frame.js";
import { Curves } from "../ui/history.js";
import { Facts, Table } from "../ui/parts.js";

/** @param {{ job: string }} props */
export function Job({ job }) {
  const now = useNow();
  const lastEvent = useStore((state) => state.board?.last_event);
  const live = useStore((state) => state.board)?.jobs.find(
    (/** @type {any} */ one) => reference(one) === job || one.id === job,
  );
  const path = `/v1/jobs/${encodeURIComponent(job)}`;
  const { data, error, again } = useAnswer(path, (signal) => one(path, { signal }), {
    on: lastEvent,
    every: 15,
    least: 2,
  });
  const title = data
    ? html`<span class="number">#${reference(data)}</span> ${label(data.name, 80)}`
    : `Job ${label(job, 40)}`;
  const name = data ? `#${reference(data)} ${label(data.name, 80)}` : `Job ${label(job, 40)}`;
  const isReady = data !== undefined || error !== undefined;
  if (!data) {
    return html`<${Main} page="job" title=${title} name=${name} isReady=${isReady}>
      <${Refusal} error=${error} />${!error && html`<p class="quiet">Waiting for the daemon.</p>`}<//>`;
  }
  const isLive = data.state !== "ended" && data.state !== "queued";
  const since =
    data.state === "ended"
      ? `${elapsed(data.ended_at, now)} ago`
      : `for ${elapsed(data.started_at ?? data.submitted_at, now)}`;
  return html`<${Main} page="job" title=${title} name=${name} isReady=${isReady}>
    <p class="summary wide" data-job=${reference(data)}>
      <strong>${state({ ...data, ...live, state: data.state })}</strong>
      <span>${label(data.user, 40)}</span><span>queue ${label(data.queue, 60)}</span>
      ${data.project && html`<span>project ${label(data.project, 60)}</span>`}
      <span>${since}</span>
      ${
        live &&
        html`<span>${used(live)} GiB, peak ${peaks(live)}</span>
        <span>GPU time ${share(shareUsed(live))} of ${share(sum(live, (slice) => slice.share))}</span>`
      }
      ${live?.bypass && html`<span class="alert">! bypass of the limiter</span>`}
      ${live?.denials > 0 && html`<span class="alert">! refused ${live.denials}×</span>`}
    </p>
    ${data.state === "ended" && html`<${Efficiency} job=${data} />`}
    <${Actions} actions=${actionsFor({ ...data, suspended: live?.suspended ?? data.suspended })} owner=${data.user}
      onDone=${again} />
    ${data.state === "queued" && html`<section aria-labelledby="why"><h2 id="why">Why it waits</h2><${Why}
      job=${job} /></section>`}
    ${data.state !== "queued" && html`<${Curves} job=${data} live=${live} />`}
    ${data.state !== "queued" && html`<${Log} job=${data} />`}
    <div class="cards two">
      <section class="card" aria-labelledby="oom"><h2 id="oom">Refused memory</h2>
        <${Refusals} job=${reference(data)} denials=${live?.denials} /></section>
      <section class="card" aria-labelledby="advice"><h2 id="advice">Advice</h2>
        <${Advice} job=${data} isLive=${isLive} onDone=${again} />
        ${data.state !== "ended" && html`<${Resize} job=${data} onDone=${again} />`}</section>
    </div>
    <${Events} job=${reference(data)} />
    <section class="card" aria-labelledby="facts"><h2 id="facts">Facts</h2>
      <${Facts} facts=${facts(data, now)} />
      <p><${Command} text=${`divvy describe ${reference(data)}`} /></p>
    </section>
  <//>`;
}

/** What an ended job used, and the next size, as far as both are known. @param {{ job: any }} props */
function Efficiency({ job }) {
  const ask = (/** @type {string | undefined} */ path) =>
    useAnswer(path, async (signal) => (await list(path ?? "", { signal })).items);
  const advice = ask(`/v1/advice?${new URLSearchParams({ job: job.id })}`);
  const period = job.started_at && job.ended_at > job.started_at;
  const times = period ? new URLSearchParams({ by: "job", since: job.started_at, until: job.ended_at }) : undefined;
  const usage = ask(times && `/v1/usage?${times}`);
  const own = usage.data?.find((/** @type {any} */ one) => one.job === job.id);
  const words = efficiency(job, advice.data ?? [], own);
  return words && html`<p class="efficiency">Used ${words}</p>`;
}

/** @param {{ job: string }} props */
function Events({ job }) {
  const now = useNow();
  const lastEvent = useStore((state) => state.board?.last_event);
  const path = `/v1/events?${new URLSearchParams({ job, tail: "50" })}`;
  const { data, error } = useAnswer(path, async (signal) => (await list(path, { signal })).items, {
    on: lastEvent,
    least: 3,
  });
  const columns = [
    { name: "when", title: "Age", isFigure: true, cell: (/** @type {any} */ event) => elapsed(event.at, now) },
    { name: "kind", title: "Event", cell: (/** @type {any} */ event) => label(event.kind, 40) },
    { name: "text", title: "Text", className: "reason", cell: (/** @type {any} */ event) => label(event.text, 500) },
  ];
  return html`<section aria-labelledby="events"><h2 id="events">Events</h2>
    ${error && html`<${Refusal} error=${error} />`}
    ${
      data &&
      html`<${Table} caption="Events of the job, the newest first" columns=${columns} rows=${[...data].reverse()}
      rowKey=${(/** @type {any} */ event) => String(event.seq)} empty="No event is stored." />`
    }
  </section>`;
}

/** Refused memory, advice from earlier runs, and the resize that follows from both. */

/** @param {{ job: string, denials?: number }} props `denials`: the report is read again when it grows. */
export function Refusals({ job, denials }) {
  const now = useNow();
  const path = `/v1/jobs/${encodeURIComponent(job)}/oom`;
  const { data, error } = useAnswer(path, (signal) => one(path, { signal }), { on: denials, least: 2 });
  if (error && !data) return html`<${Refusal} error=${error} />`;
  if (!data) return html`<p class="quiet">Waiting for the daemon.</p>`;
  const limit = needed(data);
  const flag = sizeFlag(data.suggested);
  const records = [...(data.records ?? [])].reverse().map((one) => refusal(one, now));
  return html`<p>${sentence(data)}</p>
    ${
      limit !== undefined &&
      html`<p>${`The refused calls need a limit of ${memory(limit)}; what the program requests after them is not known.`}</p>`
    }
    ${
      flag !== undefined &&
      html`<p>With room for more: <${Command} text=${
        data.state === "running" ? `divvy resize ${job} ${flag}` : `divvy run ${flag} -- …`
      } /></p>`
    }
    ${records.map(
      ({ key, title, facts }) => html`<details key=${key} class="record">
      <summary>${title}</summary><${Facts} facts=${facts} /></details>`,
    )}`;
}

/** @param {{ job: any, isLive: boolean, onDone: () => void }} props */
export function Advice({ job, isLive, onDone }) {
  const id = reference(job);
  const path = `/v1/advice?${new URLSearchParams({ job: id })}`;
  const { data, error } = useAnswer(path, async (signal) => (await list(path, { signal })).items);
  if (error?.code === "not_found") return html`<p class="quiet">There is no earlier run of this program.</p>`;
  if (error && !data) return html`<${Refusal} error=${error} />`;
  if (!data) return html`<p class="quiet">Waiting for the daemon.</p>`;
  if (data.length === 0) return html`<p class="quiet">There is no earlier run of this program.</p>`;
  return data.map((/** @type {any} */ advice) => {
    const isKnown = typeof advice.memory_bytes === "number";
    const size = requestable(isKnown ? advice.memory_bytes : advice.memory_at_least_bytes);
    const action = resize(id, size);
    return html`<div key=${advice.program + advice.gpus}>
      <p><strong>${advice.gpus > 1 ? `${advice.gpus} × ` : ""}${
        isKnown ? memory(advice.memory_bytes) : `more than ${memory(advice.memory_at_least_bytes)}`
      }</strong>
        ${` from ${count(advice.runs, "run")} of `}<code>${label(advice.program, 200)}</code></p>
      <${Facts} facts=${[
        ["limit", memory(advice.memory_limit_bytes)],
        ["peak p50/max", memories([advice.memory_peak_median_bytes, advice.memory_peak_bytes])],
        ["effect", reason(advice)],
      ]} />
      ${
        isLive &&
        isKnown &&
        typeof action !== "string" &&
        html`<div class="row"><${Command} text=${`divvy resize ${id} --gpu-memory ${size}`} />
        <${ActionButton} action=${action} owner=${job.user} text="Resize to this" onDone=${onDone} /></div>`
      }
    </div>`;
  });
}

/** A resize by hand. @param {{ job: any, onDone: () => void }} props */
export function Resize({ job, onDone }) {
  const [typed, setTyped] = useState("");
  const action = resize(reference(job), typed);
  const isWrong = typeof action === "string";
  return html`<form class="row" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
    <label>New size <input type="text" maxlength="40" placeholder="12G, 0.5, fair=0.25" value=${typed}
      autocomplete="off"
      aria-describedby=${isWrong && typed ? "size-wrong" : undefined}
      onInput=${(/** @type {any} */ event) => setTyped(event.target.value)} /></label>
    ${!isWrong && html`<${ActionButton} action=${action} owner=${job.user} text="Resize" onDone=${onDone} />`}
    ${isWrong && typed !== "" && html`<span id="size-wrong" class="quiet">${action}</span>`}
  </form>`;
}
