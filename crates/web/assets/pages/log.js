/** The output of a job as it comes: the last lines, with a search. */

import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { call, pieces as piecesOf, Refused } from "../api.js";
import { reference } from "../lib/board.js";
import { count } from "../lib/format.js";
import { delay, matching, MOST_LINES, Output, pieces } from "../lib/stream.js";
import { Command, Refusal } from "../ui/action.js";

/** Lines that are drawn. */
const DRAWN = 500;
/** Time between two drawings of new output, in milliseconds. */
const DRAW = 250;

/**
 * @typedef {{ output: Output, status: "waiting" | "open" | "ended" | "lost", error?: any, version: number }} Shown
 */

/**
 * Follows a log until the job ends or the component goes. After a loss it goes on where it was.
 * @param {string} path @param {AbortSignal} signal @param {(change: Partial<Shown>) => void} show
 * @param {() => boolean} isOver Whether the job has ended: a stream of one that goes on was cut.
 */
async function follow(path, signal, show, isOver) {
  const output = new Output();
  let offset = /** @type {number | undefined} */ (undefined);
  let version = 0;
  let timer = 0;
  const draw = () => {
    timer = 0;
    version += 1;
    show({ output, version });
  };
  for (let attempt = 0; !signal.aborted;) {
    try {
      const query = offset === undefined ? `tail=${MOST_LINES}` : `offset=${offset}`;
      const answer = await call(`${path}/log?${query}&follow=true`, { signal });
      offset = Number(answer.headers.get("divvy-log-from")) || offset || 0;
      show({ status: "open", error: undefined });
      await piecesOf(answer, (piece, bytes) => {
        offset = (offset ?? 0) + bytes;
        attempt = 0;
        output.take(piece);
        timer ||= setTimeout(draw, DRAW);
      });
      if (isOver()) return show({ status: "ended" });
    } catch (error) {
      if (signal.aborted) return undefined;
      if (error instanceof Refused && error.status < 500) return show({ status: "ended", error });
      show({ status: "lost" });
    }
    await new Promise((resolve) => setTimeout(resolve, delay(attempt, Math.random())));
    attempt += 1;
  }
  return undefined;
}

/** @param {{ job: any }} props */
export function Log({ job }) {
  const [shown, setShown] = useState(/** @type {Shown} */ ({ output: new Output(), status: "waiting", version: 0 }));
  const [wanted, setWanted] = useState("");
  const [isAtEnd, setAtEnd] = useState(true);
  const box = useRef(/** @type {any} */ (null));
  const id = reference(job);
  const isOver = useRef(false);
  isOver.current = job.state === "ended";
  useEffect(() => {
    const abort = new AbortController();
    follow(
      `/v1/jobs/${encodeURIComponent(id)}`,
      abort.signal,
      (change) => {
        if (!abort.signal.aborted) setShown((before) => ({ ...before, ...change }));
      },
      () => isOver.current,
    );
    return () => abort.abort();
  }, [id, job.attempt]);
  const lines = shown.output.shown();
  const found = matching(lines, wanted);
  const drawn = found.slice(-DRAWN);
  useLayoutEffect(() => {
    if (isAtEnd && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [shown.version, wanted, isAtEnd]);
  const onScroll = () => {
    if (!box.current) return;
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    setAtEnd(scrollHeight - scrollTop - clientHeight < 24);
  };
  const status = {
    waiting: "waiting for the daemon",
    open: "live",
    ended: "complete",
    lost: "no connection; it goes on by itself",
  }[shown.status];
  const hidden = shown.output.dropped + (wanted === "" ? lines.length - drawn.length : 0);
  return html`<section aria-labelledby="log">
    <div class="heading"><h2 id="log">Output</h2>
      <span class="chip">${status}</span>
      <label class="find">Find <input type="search" value=${wanted} maxlength="200"
        onInput=${(/** @type {any} */ event) => setWanted(event.target.value)} /></label>
      ${wanted !== "" && html`<span aria-live="polite">${count(found.length, "line")}</span>`}
      <label class="inline"><input type="checkbox" checked=${isAtEnd}
        onChange=${(/** @type {any} */ event) => setAtEnd(event.target.checked)} /> follow</label>
    </div>
    <${Refusal} error=${shown.error} />
    ${
      !shown.error &&
      html`<div class="log" ref=${box} tabindex="0" role="log" aria-live="off" aria-label="Output of the job"
        onScroll=${onScroll}>
      ${hidden > 0 && html`<p class="quiet">${count(hidden, "earlier line")}: <${Command}
        text=${`divvy logs ${id}`} /></p>`}
      ${drawn.length === 0 && html`<p class="quiet">${empty(job, wanted, shown.status)}</p>`}
      ${drawn.map(
        (line) =>
          html`<div key=${line.number} class="line">${pieces(line.text, wanted).map((piece, at) =>
            at % 2 === 1 ? html`<mark>${piece}</mark>` : piece,
          )}</div>`,
      )}
    </div>`
    }
  </section>`;
}

/** @param {any} job @param {string} wanted @param {string} status */
function empty(job, wanted, status) {
  if (wanted !== "") return "No line has this text.";
  if (job.output?.stdout) return `Its output goes to ${job.output.stdout}.`;
  return status === "ended" ? "The job wrote nothing." : "No output yet.";
}
