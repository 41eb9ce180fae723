/** The form of filters above a list. What it holds is the query of the page's address, so that a link has it too. */

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { label } from "../lib/format.js";
import { filter as filterOf, format } from "../lib/route.js";
import { useStore } from "../store.js";

/**
 * @typedef {{ typed: Record<string, string>, change: (name: string, value: string, wait: number) => void }} Change
 * @param {{ page: string, label: string, names: readonly string[], query: Record<string, string>,
 *   children: (fields: Change) => any }} props
 */
export function Filters({ page, label: name, names, query, children }) {
  const filter = filterOf(query, names);
  const [typed, setTyped] = useState(filter);
  const timer = useRef(0);
  const key = JSON.stringify(filter);
  useEffect(() => setTyped(filter), [key]);
  const change = (/** @type {string} */ field, /** @type {string} */ value, /** @type {number} */ wait) => {
    const next = { ...typed, [field]: value };
    setTyped(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      location.hash = format(page, filterOf(next, names));
    }, wait);
  };
  return html`<form class="filters" role="search" aria-label=${name}
    onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
    ${children({ typed, change })}
    ${Object.keys(filter).length > 0 && html`<a class="button" href=${format(page)}>Clear</a>`}
  </form>`;
}

/** A text. @param {{ fields: Change, name: string, title: string }} props */
export function Field({ fields, name, title }) {
  return html`<label>${title}
    <input type="search" name=${name} maxlength="200" value=${fields.typed[name] ?? ""} autocomplete="off"
      onInput=${(/** @type {any} */ event) => fields.change(name, event.target.value, 400)} /></label>`;
}

/**
 * One of several values, or all.
 * @param {{ fields: Change, name: string, title: string, options: [string, string][] }} props
 */
export function Select({ fields, name, title, options }) {
  return html`<label>${title} <select name=${name} value=${fields.typed[name] ?? ""}
    onChange=${(/** @type {any} */ event) => fields.change(name, event.target.value, 0)}>
    <option value="">all</option>
    ${options.map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}
  </select></label>`;
}

/** A queue, with its pending jobs. @param {{ fields: Change }} props */
export function QueueField({ fields }) {
  const queues = useStore((state) => state.board)?.queues ?? [];
  const options = queues.map(
    (/** @type {any} */ one) => /** @type {[string, string]} */ ([one.name, `${label(one.name, 60)} (${one.waiting})`]),
  );
  return html`<${Select} fields=${fields} name="queue" title="Queue" options=${options} />`;
}
