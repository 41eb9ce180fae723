/** The page: its frame, its routes, and the parts that every page shares. */

import { html, render, useEffect, useState } from "./vendor/preact.js";
import { takeToken } from "./api.js";
import { parse } from "./lib/route.js";
import { follow, retryNow } from "./live.js";
import { Doctor } from "./pages/doctor.js";
import { Job } from "./pages/job.js";
import { Jobs } from "./pages/jobs.js";
import { Mig } from "./pages/mig.js";
import { Missing } from "./pages/missing.js";
import { Overview } from "./pages/overview.js";
import { People } from "./pages/people.js";
import { Queue } from "./pages/queue.js";
import { set, useStore } from "./store.js";
import { Confirm } from "./ui/action.js";
import { Frame, Said, Token } from "./ui/frame.js";

const PAGES = /** @type {Record<string, any>} */ ({
  overview: Overview,
  queue: Queue,
  job: Job,
  jobs: Jobs,
  missing: Missing,
  people: People,
  mig: Mig,
  doctor: Doctor,
});

function useRoute() {
  const [route, setRoute] = useState(() => parse(location.hash));
  useEffect(() => {
    const look = () => {
      if (takeToken()) retryNow();
      const next = parse(location.hash);
      setRoute((before) => {
        if (before.page !== next.page || before.job !== next.job) focusHeading();
        return next;
      });
    };
    addEventListener("hashchange", look);
    return () => removeEventListener("hashchange", look);
  }, []);
  return route;
}

/** @returns {HTMLElement | null} */
const heading = () => document.querySelector("main h1");

/** @type {any} */
let focused;
addEventListener("focusin", (event) => {
  focused = event.target;
});
// A button may go away with its job. Then the heading takes the focus, and the keyboard goes on from there.
new MutationObserver(() => {
  if (!focused || focused.isConnected) return;
  focused = undefined;
  if (document.activeElement === document.body) heading()?.focus({ preventScroll: true });
}).observe(document.body, { childList: true, subtree: true });

/** A new page begins at its heading, for the keyboard and for screen readers. */
function focusHeading() {
  requestAnimationFrame(() => {
    scrollTo(0, 0);
    heading()?.focus({ preventScroll: true });
  });
}

function App() {
  const route = useRoute();
  const needsToken = useStore((state) => state.needsToken);
  const isLost = useStore((state) => state.lost !== undefined);
  useEffect(() => {
    if (isLost) document.body.dataset.stale = "true";
    else delete document.body.dataset.stale;
  }, [isLost]);
  const Page = PAGES[route.page];
  return html`
    <${Frame} page=${route.page}>
      ${needsToken ? html`<${Token} />` : html`<${Page} key=${route.page + (route.job ?? "")} ...${route} />`}
    <//>
    <${Confirm} />
    <${Said} />`;
}

takeToken();
// `theme.js` has read the choice before the first paint.
set({ theme: document.documentElement.dataset.theme ?? "auto" });
const root = /** @type {HTMLElement} */ (document.getElementById("app"));
root.textContent = "";
render(html`<${App} />`, root);
follow();
