/**
 * Tables that become rows of terms on a narrow screen. Roles are explicit, as a changed display would remove them.
 */

import { html } from "../vendor/preact.js";
import { computeParts, holders, memoryParts, slots, slotState } from "../lib/gpus.js";
import { jobLink } from "../lib/route.js";
import { palette } from "../store.js";

/**
 * @typedef {{ name: string, title: string, cell: (row: any) => any, isFigure?: boolean, order?: string,
 *   className?: string }} Column
 * @param {{ caption: string, columns: Column[], rows: any[], rowKey: (row: any) => string, rowProps?: (row: any) => any,
 *   sort?: { by: string, isReversed: boolean }, onSort?: (by: string) => void, below?: (row: any) => any,
 *   empty?: string, isCaptionSeen?: boolean }} props
 */
export function Table({ caption, columns, rows, rowKey, rowProps, sort, onSort, below, empty, isCaptionSeen }) {
  if (rows.length === 0 && empty) return html`<p class="quiet">${empty}</p>`;
  const head = (/** @type {Column} */ column) => {
    const isSorted = sort && sort.by === column.order;
    const text =
      column.order && onSort
        ? html`<button type="button" class="sort"
          onClick=${() => onSort(/** @type {string} */ (column.order))}>${column.title}
          <span aria-hidden="true">${isSorted ? (sort.isReversed ? "↑" : "↓") : ""}</span></button>`
        : column.title;
    return html`<th key=${column.name} role="columnheader" scope="col" class=${column.isFigure ? "figure" : ""}
      aria-sort=${isSorted ? (sort.isReversed ? "descending" : "ascending") : undefined}>${text}</th>`;
  };
  return html`<table class="rows" role="table">
    <caption class=${isCaptionSeen ? "" : "unseen"}>${caption}</caption>
    <thead role="rowgroup"><tr role="row">${columns.map(head)}</tr></thead>
    <tbody role="rowgroup">
      ${rows.map((row) => {
        const more = below?.(row);
        return html`<${Group} key=${rowKey(row)}>
          <tr role="row" ...${rowProps?.(row)}>
            ${columns.map(
              (column) => html`<td key=${column.name} role="cell" data-term=${column.title}
              class=${`${column.isFigure ? "figure" : ""} ${column.className ?? ""}`}>${column.cell(row)}</td>`,
            )}
          </tr>
          ${more && html`<tr role="row" class="below"><td role="cell" colspan=${columns.length}>${more}</td></tr>`}
        <//>`;
      })}
    </tbody>
  </table>`;
}

/** Rows that move together. @param {{ children?: any }} props */
const Group = ({ children }) => children;

/** Facts with a name. @param {{ facts: [string, any][] }} props */
export function Facts({ facts }) {
  return html`<dl class="facts">
    ${facts.map(([name, value], at) => html`<div key=${at}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

/**
 * One of several: radio buttons that look like one control.
 * @param {{ legend: string, name: string, value: string, options: readonly (readonly [string, string])[],
 *   onChange: (value: string) => void }} props
 */
export function Choice({ legend, name, value, options, onChange }) {
  return html`<fieldset class="choice">
    <legend>${legend}</legend>
    ${options.map(
      ([option, text]) => html`<label key=${option}>
      <input type="radio" name=${name} value=${option} checked=${option === value}
        onChange=${() => onChange(option)} />
      <span>${text}</span>
    </label>`,
    )}
  </fieldset>`;
}

/** Bars of a GPU: memory and compute by holder, and MIG by slot. Each colour stands beside a pattern and a name. */

/** @typedef {import("../lib/gpus.js").Part} Part */

/** @param {Part} part */
function look(part) {
  return part.key ? `part ${part.kind} c${palette.of(part.key)}` : `part ${part.kind}`;
}

/** @param {{ parts: Part[], label: string }} props */
export function Bar({ parts, label }) {
  return html`<div class="bar" role="img" aria-label=${label}>
    ${parts.map((part, at) => {
      const isStart = part.key !== undefined && parts[at - 1]?.key !== part.key;
      return html`<span key=${at} class=${look(part) + (isStart ? " begins" : "")}
        style=${{ width: `${part.width}%` }}></span>`;
    })}
  </div>`;
}

/** The holders of a GPU with the look of their parts. @param {{ board: any, gpu: any }} props */
export function Legend({ board, gpu }) {
  const all = holders(board, gpu);
  if (all.length === 0) return null;
  return html`<ul class="legend">
    ${all.map(
      (one) => html`<li key=${one.key} class=${one.isAlert ? "alert" : ""}>
      <span class=${swatch(one.key)} aria-hidden="true"></span>
      ${one.job ? html`<a href=${jobLink(one.job)}>${one.name}</a>` : html`<span>${one.isAlert ? "! " : ""}${one.name}</span>`}
      <span class="figures">${one.figures}</span>
    </li>`,
    )}
  </ul>`;
}

/** @param {string} key */
function swatch(key) {
  if (key === "outside") return "swatch part outside";
  return key.startsWith("elsewhere:") ? "swatch part elsewhere" : `swatch part used c${palette.of(key)}`;
}

/** @param {{ board: any, gpu: any }} props */
export function MemoryBar({ board, gpu }) {
  const words = holders(board, gpu)
    .map((one) => `${one.name} ${one.figures}`)
    .join("; ");
  return html`<${Bar} parts=${memoryParts(board, gpu)} label=${`Memory of GPU ${gpu.index}: ${words || "free"}`} />`;
}

/** @param {{ board: any, gpu: any }} props */
export function ComputeBar({ board, gpu }) {
  return html`<${Bar} parts=${computeParts(board, gpu)}
    label=${`Compute time of GPU ${gpu.index}: ${gpu.share / 10} % allocated`} />`;
}

/**
 * MIG by slots: held, idle (hollow), unmanaged, quarantined (!), free, and what a plan adds.
 * @param {{ mig: any, label: string, planned?: { start: number, size: number }[] }} props
 */
export function Slots({ mig, label, planned = [] }) {
  const all = slots(mig);
  const isPlanned = (/** @type {any} */ slot) =>
    planned.some((one) => slot.start < one.start + one.size && one.start < slot.start + slot.size);
  return html`<ol class="slots" aria-label=${label}>
    ${all.map((slot) => {
      const state = slotState(slot.state);
      const isFree = slot.state === "free";
      const name = isFree ? String(slot.start) : slot.profile.split(".")[0];
      const text = isFree ? "" : slot.job ? `#${slot.job}` : state;
      const colour = slot.job ? `c${palette.of(`job:${slot.job}`)}` : "";
      return html`<li key=${slot.start} class=${`slot ${state.replaceAll(" ", "-")} ${colour} ${isPlanned(slot) ? "planned" : ""}`}
        style=${{ flexGrow: slot.size }} title=${`${slot.profile || "free"} at slot ${slot.start}: ${state}`}>
        <b>${state === "quarantined" ? `! ${name}` : name}</b>
        ${slot.job ? html`<a href=${jobLink(slot.job)}>${text}</a>` : html`<span>${text}</span>`}
        ${isPlanned(slot) && html`<i>planned</i>`}
      </li>`;
    })}
  </ol>`;
}
