/**
 * Routes inside the page: fragments such as `#/queue?user=ana`, and the token in the fragment of the first address.
 */

export const PAGES = /** @type {const} */ ([
  ["overview", "Overview"],
  ["queue", "Queue"],
  ["jobs", "Ended"],
  ["people", "People"],
  ["mig", "MIG"],
  ["doctor", "Doctor"],
]);

/**
 * @typedef {{ page: string, job?: string, query: Record<string, string> }} Route
 * @param {string} fragment
 * @returns {Route}
 */
export function parse(fragment) {
  const [path, search = ""] = fragment.replace(/^#\/?/, "").split(/\?(.*)/s);
  /** @type {Record<string, string>} */
  const query = {};
  for (const [name, value] of new URLSearchParams(search)) query[name] = value.slice(0, 200);
  const [page, rest] = path.split("/");
  if (page === "job" && rest) return { page, job: decoded(rest).slice(0, 200), query };
  if (page === "") return { page: "overview", query };
  return { page: PAGES.some(([name]) => name === page) ? page : "missing", query };
}

/** @param {string} page @param {Record<string, string | undefined>} [query] @param {string} [job] */
export function format(page, query = {}, job) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value) search.set(name, value);
  const tail = search.toString();
  return `#/${page}${job === undefined ? "" : `/${encodeURIComponent(job)}`}${tail ? `?${tail}` : ""}`;
}

/** The address of a job's page. @param {string} job */
export const jobLink = (job) => format("job", {}, job);

/**
 * The token in a fragment: everything that is no route. `undefined` if there is none.
 * @param {string} fragment
 */
export function token(fragment) {
  const text = fragment.replace(/^#/, "");
  if (text === "" || text.startsWith("/")) return undefined;
  const [found] = decoded(text).split("/");
  return found && /^[\x21-\x7e]{1,4096}$/.test(found) ? found : undefined;
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Queries of `GET /v1/jobs` from the fields of the queue's page, and the places of its rows. */

export const PAGE = 100;
export const FILTERS = /** @type {const} */ (["user", "queue", "project", "text"]);

/** Filters of the list of ended jobs. `since` is the age of the oldest end, such as `24h`. */
export const ENDED_FILTERS = /** @type {const} */ (["state", "user", "name", "queue", "project", "since"]);

/** Words of `ps -s` for ends, and the words for all of them. */
export const ENDS = /** @type {const} */ ([
  "completed",
  "failed",
  "cancelled",
  "time_limit",
  "idle_timeout",
  "launch_failed",
  "supervisor_lost",
  "bypass",
  "dependency_failed",
  "gpu_lost",
  "released",
]);

/** Ages of the field "Ended within", with their seconds. */
export const AGES = /** @type {const} */ ([
  ["1h", "1 hour", 3_600],
  ["24h", "24 hours", 86_400],
  ["7d", "7 days", 604_800],
  ["30d", "30 days", 2_592_000],
]);

/** @typedef {Partial<Record<typeof FILTERS[number], string>>} Filter */

/**
 * The filter of a route. @param {Record<string, string>} query @param {readonly string[]} [names]
 * @returns {Record<string, string>}
 */
export function filter(query, names = FILTERS) {
  /** @type {Record<string, string>} */
  const found = {};
  for (const name of names) if (query[name]?.trim()) found[name] = query[name].trim();
  return found;
}

/**
 * A page of the ended jobs, the last end first.
 * @param {Record<string, string>} filter @param {number} now @param {string} [after] `divvy-next` of the page before.
 */
export function ended(filter, now, after) {
  const state = filter.state || "ended";
  const query = new URLSearchParams({ state, sort: "-ended", limit: String(PAGE), brief: "true" });
  for (const name of ENDED_FILTERS) {
    if (filter[name] && name !== "state" && name !== "since") query.set(name, filter[name]);
  }
  const age = AGES.find(([name]) => name === filter.since)?.[2];
  if (age) query.set("since", new Date(now - age * 1000).toISOString());
  if (after) query.set("after", after);
  return `/v1/jobs?${query}`;
}

/**
 * Whether a list with this filter has every job of each of its queues, so that the page can count places itself. Whole
 * jobs are four times as large as brief ones.
 * @param {Filter} filter
 */
export const hasWholeQueues = (filter) => !filter.user && !filter.project && !filter.text;

/**
 * @param {Filter} filter @param {string} [after] `divvy-next` of the page before.
 * @param {boolean} [hasTasks] Each task of an array has a row of its own.
 */
export function waiting(filter, after, hasTasks = false) {
  const query = new URLSearchParams({ state: "queued", sort: "place", limit: String(PAGE) });
  if (!hasTasks) query.set("fold", "true");
  if (hasWholeQueues(filter)) query.set("brief", "true");
  for (const name of FILTERS) if (filter[name]) query.set(name, filter[name] ?? "");
  if (after) query.set("after", after);
  return `/v1/jobs?${query}`;
}

/**
 * The place of each row in its queue. The list is in the order of places, so the n-th job of a queue has place n.
 * @param {any[]} jobs @param {Record<string, number>} before Jobs of each queue on the pages before.
 * @param {Filter} filter
 */
export function places(jobs, before, filter) {
  const seen = { ...before };
  const rows = jobs.map((job) => {
    const queue = job.queue ?? "default";
    seen[queue] = (seen[queue] ?? 0) + 1;
    const counted = hasWholeQueues(filter) && Number.isFinite(seen[queue]) ? seen[queue] : undefined;
    // The tasks of a row may have places between those of the rows behind it.
    if (job.folded) seen[queue] = Infinity;
    return { job, place: /** @type {number | undefined} */ (job.place ?? counted) };
  });
  return { rows, seen };
}

/**
 * Jobs of a GPU, or of all, that had not ended at a time; those with the largest peaks.
 * @param {string} since
 * @param {number} most
 * @param {number} [gpu]
 */
export function largest(since, most, gpu) {
  const query = new URLSearchParams({ since, sort: "-peak", limit: String(most), brief: "true" });
  if (gpu !== undefined) query.set("gpu", String(gpu));
  return `/v1/jobs?${query}`;
}
