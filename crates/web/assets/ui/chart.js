/** Charts of uPlot: lines, and stacks with a pattern for each colour. A button shows the same figures as a table. */

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { hue, stroke } from "../lib/board.js";
import { clock, isFigure, NONE } from "../lib/format.js";
import { sampled, stacked } from "../lib/history.js";
import { useStore } from "../store.js";
import { Table } from "./parts.js";

/**
 * @typedef {{ key: string, label: string, colour?: number, values: (number | null)[], isLine?: boolean }} Series
 * A line is not stacked: a limit, or a share. `colour` is a pair of the palette; without one, the series is grey.
 * @param {{ name: string, title: string, unit: string, times: number[], series: Series[], digits?: number,
 *   most?: number }} props `digits` of the unit's figures; `most`: the end of the scale, if it is known.
 */
export function Chart({ name, title, unit, times, series, digits = 1, most }) {
  const [isTable, setTable] = useState(false);
  const [at, setAt] = useState(/** @type {number | undefined} */ (undefined));
  const hasValues = series.some((one) => one.values.some((value) => value !== null));
  const figure = (/** @type {number | null | undefined} */ value) => (isFigure(value) ? value.toFixed(digits) : NONE);
  const newest = Math.max(
    0,
    times.findLastIndex((_, point) => series.some((one) => isFigure(one.values[point]))),
  );
  const shown = at ?? newest;
  const now = Date.now();
  return html`<figure class="chart" data-chart=${name}>
    <figcaption>
      <span>${title}, ${unit}</span>
      <span class="quiet">${at === undefined ? "" : clock(times[at] * 1000, now)}</span>
      <button type="button" class="small" data-table-for=${name} aria-expanded=${isTable ? "true" : "false"}
        onClick=${() => setTable(!isTable)}>${isTable ? "Chart" : "Table"}</button>
    </figcaption>
    ${isTable && html`<${Values} title=${title} unit=${unit} times=${times} series=${series} figure=${figure}
      now=${now} />`}
    ${!isTable && !hasValues && html`<p class="quiet empty">Nothing was measured in this time.</p>`}
    ${
      !isTable &&
      hasValues &&
      html`<${Plot} times=${times} series=${series} unit=${unit} most=${most} onPoint=${setAt} title=${title} />`
    }
    ${
      hasValues &&
      html`<ul class="legend">
      ${series.map(
        (one) => html`<li key=${one.key}>
        <span class=${`swatch part ${one.isLine ? "line" : "used"} ${one.colour === undefined ? "other" : "c" + one.colour}`}
          aria-hidden="true"></span>
        <span>${one.label}</span><span class="figures">${figure(one.values[shown])}</span>
      </li>`,
      )}
    </ul>`
    }
  </figure>`;
}

/** @param {any} props */
function Values({ title, unit, times, series, figure, now }) {
  const columns = [
    { name: "time", title: "Time", cell: (/** @type {number} */ row) => clock(times[row] * 1000, now) },
    ...series.map((/** @type {Series} */ one) => ({
      name: one.key,
      title: one.label,
      isFigure: true,
      cell: (/** @type {number} */ row) => figure(one.values[row]),
    })),
  ];
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${`${title} as a table`}>
    <${Table} caption=${`${title}, ${unit}`} columns=${columns} rows=${sampled(times.length).reverse()}
      rowKey=${String} />
  </div>`;
}

/** @param {any} props */
function Plot({ times, series, unit, most, onPoint, title }) {
  const box = useRef(/** @type {any} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const theme = useTheme();
  const [isLoaded, setLoaded] = useState(false);
  const point = useRef(onPoint);
  point.current = onPoint;
  // The plot is made anew only when its series change; new figures go into it.
  const form = JSON.stringify([
    unit,
    most,
    theme,
    ...series.map((/** @type {Series} */ one) => [one.key, one.colour, one.isLine]),
  ]);
  useEffect(() => {
    let isGone = false;
    plotter().then(
      (Plotter) => {
        if (isGone || !box.current) return;
        const { width } = box.current.getBoundingClientRect();
        plot.current = new Plotter(options(series, unit, most, width, point), data(times, series), box.current);
        setLoaded(true);
      },
      () => setLoaded(false),
    );
    const resized = new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width);
      if (plot.current && width > 0 && width !== plot.current.width) plot.current.setSize({ width, height: HEIGHT });
    });
    resized.observe(box.current);
    return () => {
      isGone = true;
      resized.disconnect();
      plot.current?.destroy();
      plot.current = null;
      point.current(undefined);
    };
  }, [form]);
  useEffect(() => {
    if (isLoaded) plot.current?.setData(data(times, series));
  }, [times, series]);
  return html`<div class="plot" ref=${box} role="img"
    aria-label=${`${title} over time; the button Table shows the figures`}></div>`;
}

const HEIGHT = 180;

/** @param {number[]} times @param {Series[]} series */
function data(times, series) {
  const stack = stacked(series.filter((one) => !one.isLine).map((one) => one.values));
  let next = 0;
  return [times, ...series.map((one) => (one.isLine ? one.values : stack[next++]))];
}

/**
 * @param {Series[]} series
 * @param {string} unit
 * @param {number | undefined} most
 * @param {number} width
 * @param {{ current: any }} point
 */
function options(series, unit, most, width, point) {
  const { ink, line, ground, series: palette } = colours();
  const colour = (/** @type {Series} */ one) =>
    one.colour === undefined ? palette.other : palette.all[hue(one.colour)];
  /** @type {any[]} */
  const bands = [];
  let below = 0;
  series.forEach((one, at) => {
    if (one.isLine) return;
    if (below > 0) bands.push({ series: [at + 1, below] });
    below = at + 1;
  });
  const axis = {
    stroke: ink,
    grid: { stroke: line, width: 1 },
    ticks: { stroke: line, width: 1 },
    font: "12px system-ui, sans-serif",
  };
  return {
    width: Math.max(200, Math.floor(width)),
    height: HEIGHT,
    bands,
    // Half of the last label of the time axis stands right of its tick.
    padding: [8, 28, 0, 0],
    legend: { show: false },
    cursor: { drag: { x: false, y: false }, points: { show: false }, y: false },
    scales: {
      x: { time: true },
      y: {
        range: (/** @type {any} */ _plot, /** @type {number} */ _low, /** @type {number} */ high) => [
          0,
          top(high, most),
        ],
      },
    },
    axes: [
      {
        ...axis,
        size: 30,
        space: 64,
        values: (/** @type {any} */ _plot, /** @type {number[]} */ splits) => splits.map(tick(splits)),
      },
      {
        ...axis,
        size: 48,
        space: 32,
        values: (/** @type {any} */ _plot, /** @type {number[]} */ splits) => splits.map(String),
      },
    ],
    series: [
      {},
      ...series.map((one) => ({
        label: one.label,
        stroke: colour(one),
        width: one.isLine ? 2 : 1,
        dash: one.isLine ? [6, 4] : undefined,
        points: { show: false },
        fill: one.isLine ? undefined : pattern(colour(one), stroke(one.colour ?? 0), ground),
      })),
    ],
    hooks: { setCursor: [(/** @type {any} */ plot) => point.current(plot.cursor.idx ?? undefined)] },
  };
}

/**
 * The end of the scale: what is known, or what is drawn with some room.
 * @param {number} high
 * @param {number | undefined} most
 */
function top(high, most) {
  const drawn = isFigure(high) && high > 0 ? high * 1.08 : 1;
  return isFigure(most) && most > 0 ? Math.max(most * 1.02, drawn) : drawn;
}

/**
 * Times of day, with seconds if the ticks are closer than a minute; the date where a day begins, or for ticks of days.
 * @param {number[]} splits
 */
function tick(splits) {
  const step = (splits[1] ?? 0) - (splits[0] ?? 0);
  return (/** @type {number} */ second) => {
    const date = new Date(second * 1000);
    const pad = (/** @type {number} */ n) => String(n).padStart(2, "0");
    const isDay = step >= 86_400 || (date.getHours() === 0 && date.getMinutes() === 0);
    if (isDay) return `${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
    const minute = `${pad(date.getHours())}:${pad(date.getMinutes())}`;
    return step < 60 ? `${minute}:${pad(date.getSeconds())}` : minute;
  };
}

/** A name for the colours that are in force; charts are drawn anew when it changes. */
function useTheme() {
  const chosen = useStore((state) => state.theme);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const [system, setSystem] = useState(dark.matches);
  useEffect(() => {
    const look = () => setSystem(dark.matches);
    dark.addEventListener("change", look);
    return () => dark.removeEventListener("change", look);
  }, []);
  return `${chosen} ${system}`;
}

/** What charts need from the document: uPlot on demand, the colours of the theme, patterns. */

/** @type {Promise<any> | undefined} */
let loading;

/** uPlot, loaded with the first chart: the first paint does not wait for it. @returns {Promise<any>} */
function plotter() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/assets/vendor/uplot.js";
    script.onload = () => resolve(/** @type {any} */ (globalThis).uPlot);
    script.onerror = () => {
      loading = undefined;
      reject(new Error("the chart could not be loaded"));
    };
    document.head.append(script);
  });
  return loading;
}

/** The colours of the theme, from the style sheet. */
function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  const all = Array.from({ length: 8 }, (_, at) => of(`--c${at}`));
  return { ink: of("--muted"), line: of("--line"), ground: of("--card"), series: { all, other: of("--other") } };
}

/**
 * A pattern of a colour: strokes of the ground over it. It is the sign beside the colour, as in `style.css`.
 * @param {string} colour @param {number} kind @param {string} ground
 */
function pattern(colour, kind, ground) {
  const size = 8;
  const scale = Math.max(1, Math.round(devicePixelRatio || 1));
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size * scale;
  const pen = canvas.getContext("2d");
  if (!pen) return colour;
  pen.scale(scale, scale);
  pen.globalAlpha = 0.85;
  pen.fillStyle = colour;
  pen.fillRect(0, 0, size, size);
  pen.globalAlpha = 0.55;
  pen.strokeStyle = ground;
  pen.lineWidth = 1.4;
  pen.beginPath();
  for (const [x0, y0, x1, y1] of STROKES[kind]) {
    pen.moveTo(x0, y0);
    pen.lineTo(x1, y1);
  }
  pen.stroke();
  return pen.createPattern(canvas, "repeat") ?? colour;
}

/** Strokes in a square of 8 by 8, so that neighbours join. @type {number[][][]} */
const STROKES = [
  [],
  [
    [-1, 1, 1, -1],
    [-1, 9, 9, -1],
    [7, 9, 9, 7],
  ],
  [[0, 4, 8, 4]],
  [
    [-1, 7, 1, 9],
    [-1, -1, 9, 9],
    [7, -1, 9, 1],
  ],
  [[4, 0, 4, 8]],
  [
    [-1, 9, 9, -1],
    [-1, -1, 9, 9],
  ],
  [[3, 4, 5, 4]],
  [
    [0, 4, 8, 4],
    [4, 0, 4, 8],
  ],
];
