/** An address that is no page. */

import { html } from "../vendor/preact.js";
import { label } from "../lib/format.js";
import { format, PAGES } from "../lib/route.js";
import { Main } from "../ui/frame.js";

export function Missing() {
  return html`<${Main} page="missing" title="No such page" isReady=${true}>
    <p>There is no page <code>${label(location.hash, 80)}</code>. These pages exist:</p>
    <ul>${PAGES.map(([name, title]) => html`<li key=${name}><a href=${format(name)}>${title}</a></li>`)}</ul>
  <//>`;
}
