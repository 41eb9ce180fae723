/** A command line with a button that copies it. */

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { call, one } from "../api.js";
import { command, commands, refusal } from "../lib/actions.js";
import { explained } from "../lib/explain.js";
import { label } from "../lib/format.js";
import { get, say, set, useAnswer, useNow, useStore } from "../store.js";
import { Facts } from "./parts.js";

/** @param {string} text */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Over plain HTTP from another machine there is no clipboard interface.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say(`copied: ${text}`);
}

/** @param {{ text: string }} props */
export function Command({ text }) {
  return html`<span class="command">
    <code>${text}</code>
    <button type="button" class="small" aria-label=${`Copy the command ${text}`}
      onClick=${() => copy(text)}>Copy</button>
  </span>`;
}

/**
 * A refusal of the daemon with its hint, whose commands can be copied.
 * @param {{ error: any, what?: string, isAction?: boolean }} props
 */
export function Refusal({ error, what, isAction }) {
  if (!error) return null;
  // What the caller may not read is no fault, and a page of another user's job has four such parts.
  if (error.code === "not_allowed" && !isAction) return html`<p class="quiet">${label(error.message, 500)}</p>`;
  const hint = commands(label(error.hint ?? "", 500));
  return html`<div class="refused" role="alert">
    <p>! ${what ? `${what}: ` : ""}${label(error.message, 500)}</p>
    ${error.hint && html`<p>${"hint: "}${hint.map((text, at) => (at % 2 === 1 ? html`<${Command}
      text=${text} />` : text))}</p>`}
  </div>`;
}

/** Actions: a button with its command, and the dialog that asks once and shows the daemon's refusal. */

/**
 * @typedef {import("../lib/actions.js").Action} Action
 * @param {{ action: Action, owner?: string, text?: string, onDone?: () => void }} props
 */
export function ActionButton({ action, owner, text, onDone }) {
  const why = useRefusal(action.verb, owner);
  const ask = () => {
    if (why) say(`not possible: ${why}`);
    else set({ asked: { ...action, onDone } });
  };
  // A button that is off keeps the focus, so that the keyboard finds the reason.
  return html`<button type="button" class=${action.verb === "cancel" ? "danger" : ""} onClick=${ask}
    data-action=${action.verb} data-command=${command(action)} data-why=${why}
    title=${why ? `${why} (${command(action)})` : command(action)}
    aria-disabled=${why ? "true" : undefined}>${text ?? action.title}</button>`;
}

/** Why an action is off. @param {string} verb @param {string} [owner] The user of the job. */
export function useRefusal(verb, owner) {
  const session = useStore((state) => state.session);
  const isLost = useStore((state) => state.lost !== undefined);
  return isLost ? "the daemon does not answer" : refusal(verb, session, owner);
}

/**
 * Buttons for actions, and below them why they are off.
 * @param {{ actions: Action[], owner?: string, onDone?: () => void, children?: any }} props
 */
export function Actions({ actions, owner, onDone, children }) {
  const why = useRefusal(actions.at(-1)?.verb ?? "", owner);
  return html`<div class="actions">
    <div class="row">
      ${actions.map((one) => html`<${ActionButton} key=${one.verb + one.title} action=${one} owner=${owner}
        onDone=${onDone} />`)}
      ${children}
    </div>
    ${why && actions.length > 0 && html`<p class="quiet">Actions are off: ${why}.</p>`}
  </div>`;
}

/** Asks once, with the exact command, and does it. */
export function Confirm() {
  const asked = useStore((state) => state.asked);
  const dialog = useRef(/** @type {any} */ (null));
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState(/** @type {any} */ (undefined));
  useEffect(() => {
    if (!asked) return;
    setError(undefined);
    setBusy(false);
    dialog.current?.showModal();
    // The safe answer is the nearest.
    dialog.current?.querySelector("[data-back]").focus();
  }, [asked]);
  if (!asked) return null;
  const close = () => {
    dialog.current?.close();
    set({ asked: undefined });
  };
  const act = async () => {
    setBusy(true);
    setError(undefined);
    try {
      await call(asked.path, { method: asked.method ?? "POST", body: asked.body, patience: 60_000 });
      say(`done: ${command(asked)}`);
      asked.onDone?.();
      if (get().asked === asked) close();
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return html`<dialog ref=${dialog} class="dialog" aria-labelledby="asked" onClose=${() => set({ asked: undefined })}>
    <h2 id="asked">${asked.title}?</h2>
    ${asked.detail && html`<p>${asked.detail}</p>`}
    <p>This does the same as:</p>
    <p><${Command} text=${command(asked)} /></p>
    <${Refusal} error=${error} isAction />
    <div class="row end">
      <button type="button" data-back="" onClick=${close}>Back</button>
      <button type="button" class="primary" data-confirm=${asked.verb} disabled=${isBusy} onClick=${act}>
        ${isBusy ? "Waiting for the daemon" : asked.title}</button>
    </div>
  </dialog>`;
}

/** Why a job waits, with what would start it. */

/** @param {{ job: string, level?: string }} props `level`: the heading's, below that of the place. */
export function Why({ job, level = "h3" }) {
  const now = useNow();
  const waiting = useStore((state) => state.board?.waiting);
  const path = `/v1/jobs/${encodeURIComponent(job)}/why`;
  const { data, error } = useAnswer(path, (signal) => one(path, { signal }), { on: waiting, least: 5 });
  if (error && !data) return html`<${Refusal} error=${error} />`;
  if (!data) return html`<p class="quiet">Waiting for the daemon.</p>`;
  const { sentence, facts, changes } = explained(data, now);
  return html`<div class="why">
    <p><strong>${sentence}</strong></p>
    <${Facts} facts=${facts} />
    ${
      data.state === "queued" &&
      html`
      <${level}>What would start it<//>
      ${changes.length === 0 && html`<p class="quiet">No single change starts it now.</p>`}
      <ul class="plain">${changes.map(
        (change, at) => html`<li key=${at}>
        ${change.text}${change.command ? html`: <${Command} text=${change.command} />` : ""}</li>`,
      )}</ul>`
    }
  </div>`;
}
