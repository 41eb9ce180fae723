/** The frame of every page: skip link, header, navigation, and the line that tells that the daemon is lost. */

import { html, useEffect, useState } from "../vendor/preact.js";
import { setToken } from "../api.js";
import { allocated } from "../lib/board.js";
import { count, duration, label, share } from "../lib/format.js";
import { format, PAGES } from "../lib/route.js";
import { coarse } from "../lib/stream.js";
import { retryNow } from "../live.js";
import { set, useStore } from "../store.js";
import { Command } from "./action.js";

const THEMES = /** @type {const} */ ([
  ["auto", "Auto"],
  ["light", "Light"],
  ["dark", "Dark"],
]);

/** @param {{ page: string, children?: any }} props */
export function Frame({ page, children }) {
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <header class="top">
      <a class="brand" href=${format("overview")}><span class="mark" aria-hidden="true"></span>divvy</a>
      <${Summary} />
      <nav aria-label="Pages"><ul>
        ${PAGES.map(
          ([name, title]) => html`<li key=${name}><a href=${format(name)}
          aria-current=${name === page ? "page" : undefined}>${title}</a></li>`,
        )}
      </ul></nav>
      <${Who} />
      <${Theme} />
    </header>
    <${Stale} />
    ${children}`;
}

/** A fragment is a route here, so the skip link moves the focus itself. @param {Event} event */
function skip(event) {
  event.preventDefault();
  const main = /** @type {HTMLElement | null} */ (document.querySelector("main"));
  main?.focus();
  main?.scrollIntoView();
}

/** The node in one line. */
function Summary() {
  const board = useStore((state) => state.board);
  if (!board) return html`<p class="summary"></p>`;
  const { hostname, gpus, jobs, waiting } = board;
  return html`<p class="summary">
    <strong>${label(hostname, 40)}</strong>
    <span>${count(gpus.length, "GPU")}</span>
    <span>${share(allocated(board))} allocated</span>
    <span>${count(jobs.length, "job runs", "jobs run")}</span>
    <span>${waiting.count} wait</span>
  </p>`;
}

function Who() {
  const session = useStore((state) => state.session);
  if (!session?.user && !session?.role) return null;
  const why = session.actions ? "" : session.why_no_actions || "read-only";
  return html`<p class="who" title=${why}>
    ${label(session.user, 30)}<span class="chip">${label(session.role, 20)}${session.actions ? "" : ", read-only"}</span>
  </p>`;
}

function Theme() {
  const theme = useStore((state) => state.theme);
  const choose = (/** @type {string} */ next) => {
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("divvy-theme", next);
    } catch {
      // Then the choice lasts until the next load.
    }
    set({ theme: next });
  };
  return html`<label class="theme">Theme
    <select value=${theme} onChange=${(/** @type {any} */ event) => choose(event.target.value)}>
      ${THEMES.map(([name, title]) => html`<option key=${name} value=${name}>${title}</option>`)}
    </select></label>`;
}

/** The daemon does not answer: why, how old the picture is, and an attempt by hand. */
function Stale() {
  const lost = useStore((state) => state.lost);
  const at = useStore((state) => state.at);
  const [now, setNow] = useState(0);
  useEffect(() => {
    if (!lost) return undefined;
    const look = () => setNow(performance.now());
    look();
    const timer = setInterval(look, 1000);
    return () => clearInterval(timer);
  }, [lost !== undefined]);
  const age = Math.max(0, now - at);
  return html`<section class=${lost ? "stale" : "stale is-off"} aria-label="Connection">
    <p role="status">${
      lost &&
      html`
      <strong>The daemon does not answer.</strong>
      ${at > 0 ? ` The picture is ${duration(coarse(age))} old. ` : " There is no picture yet. "}
      <span class="quiet">${label(lost.why, 300)}${lost.hint ? `; ${label(lost.hint, 200)}` : ""}</span>`
    }
    </p>
    ${lost && html`<button type="button" onClick=${retryNow}>Try now</button>`}
  </section>`;
}

/** What a screen reader hears: the outcome of an action, a copied text. */
export function Said() {
  const said = useStore((state) => state.said);
  return html`<footer class="unseen"><p aria-live="polite">${said}</p></footer>`;
}

/**
 * The content of a page, with its heading.
 * @param {{ page: string, title: any, name?: string, isReady: boolean, children?: any }} props `name`: the title as text.
 */
export function Main({ page, title, name, isReady, children }) {
  const hostname = useStore((state) => state.board?.hostname);
  // Tabs of several pages and jobs have names of their own (WCAG 2.4.2).
  const words = [name ?? title, hostname && label(hostname, 40), "Divvy"].filter(Boolean).join(" · ");
  useEffect(() => {
    document.title = words;
  }, [words]);
  return html`<main id="main" class="page" tabindex="-1" data-page=${page} data-ready=${isReady ? "true" : "false"}
    aria-busy=${isReady ? "false" : "true"}>
    <h1 tabindex="-1">${title}</h1>
    ${children}
  </main>`;
}

/** The field for the token, where the page has none or a wrong one. */

export function Token() {
  const error = useStore((state) => state.tokenError);
  const [text, setText] = useState("");
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (text.trim() === "") return;
    // A whole address is as good as the token at its end.
    setToken(text.trim().replace(/^.*#/s, ""));
    retryNow();
  };
  return html`<${Main} page="token" title="Token" isReady=${true}>
    <section class="card narrow">
      <p>This page needs the token that the daemon's side printed.</p>
      ${error && html`<p class="refused" role="alert">! ${label(error, 300)}</p>`}
      <form onSubmit=${submit}>
        <label for="token">Token, or the whole address</label>
        <div class="row">
          <input id="token" type="password" autocomplete="off" spellcheck="false" value=${text}
            onInput=${(/** @type {any} */ event) => setText(event.target.value)} />
          <button type="submit" class="primary">Open</button>
        </div>
      </form>
      <p>On the machine with the GPUs, this command prints a new address with its token:</p>
      <${Command} text="divvy web" />
      <p class="quiet">For a daemon with the key <code>listen.listen</code>, the token is that of <code>listen.token-file</code>.</p>
    </section>
  <//>`;
}
