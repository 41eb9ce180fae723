/** MIG: the slots of each GPU, and what-if: where further instances would go. */

import { html, useState } from "../vendor/preact.js";
import { list } from "../api.js";
import { commandLine, label, memory, modelName } from "../lib/format.js";
import { how, offered, parse, pictures, place, planned, profiles } from "../lib/gpus.js";
import { say, useAnswer, useStore } from "../store.js";
import { Command, Refusal } from "../ui/action.js";
import { Main } from "../ui/frame.js";
import { Slots, Table } from "../ui/parts.js";

export function Mig() {
  const boardGpus = useStore((state) => state.board?.gpus);
  const [plan, setPlan] = useState(/** @type {any[]} */ ([]));
  const { data, error } = useAnswer("gpus", async (signal) => (await list("/v1/gpus", { signal })).items, {
    on: boardGpus && JSON.stringify(boardGpus.map((/** @type {any} */ one) => one.mig)),
    least: 3,
    every: 60,
  });
  const gpus = data ?? [];
  const shown = pictures(gpus);
  return html`<${Main} page="mig" title="MIG" isReady=${data !== undefined || error !== undefined}>
    ${error && html`<${Refusal} error=${error} />`}
    ${
      data &&
      shown.length === 0 &&
      html`<section class="card narrow"><p>No GPU is in MIG mode.</p>
      <p>An administrator changes that. The dry run lists the steps:</p>
      <p><${Command} text="divvy admin gpu 0 --mode mig --dry-run" /></p></section>`
    }
    ${
      shown.length > 0 &&
      html`
      <section aria-labelledby="slots"><h2 id="slots">Slots</h2>
        <div class="cards">${shown.map(
          (one) => html`<article class="card gpu" key=${one.index} data-gpu=${one.index}>
          <header><h3>GPU ${one.index}</h3><span class="quiet">${modelName(one.model)}</span></header>
          <${Slots} mig=${one.mig} label=${`MIG slots of GPU ${one.index}`} planned=${planned(plan, one.index)} />
        </article>`,
        )}</div>
        <p class="quiet">Held instances have a job. Idle ones wait for the next job of their size; the daemon destroys them
          when it needs their slots.</p>
      </section>
      <${WhatIf} gpus=${gpus} plan=${plan} onPlan=${setPlan} />`
    }
    <section aria-labelledby="simulate"><h2 id="simulate">Longer questions</h2>
      <p>A plan places instances once, in today's free slots. How another mode of a GPU would change the waits of the
        past jobs is a question for the simulation, which changes nothing:</p>
      <p><${Command} text="divvy simulate --gpu-mode 0=mig" /></p></section>
  <//>`;
}

/** @param {{ gpus: any[], plan: any[], onPlan: (plan: any[]) => void }} props */
function WhatIf({ gpus, plan, onPlan }) {
  const [typed, setTyped] = useState("");
  const [error, setError] = useState(/** @type {any} */ (undefined));
  const [isBusy, setBusy] = useState(false);
  const wanted = parse(typed);
  const isWrong = typeof wanted === "string";
  const ask = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (isWrong || wanted.length === 0) return;
    setBusy(true);
    setError(undefined);
    try {
      const { items } = await list("/v1/mig/plan", { method: "POST", body: { profiles: wanted, gpus_on: [] } });
      onPlan(items);
      say(`the plan places ${items.length} instances`);
    } catch (failure) {
      onPlan([]);
      setError(failure);
    }
    setBusy(false);
  };
  const columns = [
    { name: "profile", title: "Profile", cell: (/** @type {any} */ one) => label(one.profile, 40) },
    { name: "gpu", title: "GPU", isFigure: true, cell: (/** @type {any} */ one) => one.gpu_index },
    { name: "slots", title: "Slots", isFigure: true, cell: place },
    { name: "memory", title: "Memory", isFigure: true, cell: (/** @type {any} */ one) => memory(one.memory_bytes) },
    { name: "how", title: "How", cell: how },
  ];
  return html`<section aria-labelledby="whatif"><h2 id="whatif">What if</h2>
    <p>Where would these instances go now? The question reserves and changes nothing.</p>
    <form class="filters" onSubmit=${ask}>
      <label class="long">Profiles <input type="text" maxlength="400" placeholder="2x1g.10gb 3g.40gb" value=${typed}
        autocomplete="off"
        aria-describedby="profiles" onInput=${(/** @type {any} */ event) => setTyped(event.target.value)} /></label>
      <button type="submit" class="primary" disabled=${isBusy || isWrong || wanted.length === 0}>Plan</button>
      ${plan.length > 0 && html`<button type="button" onClick=${() => onPlan([])}>Clear</button>`}
    </form>
    <p class="quiet" id="profiles">${isWrong ? `! ${wanted}` : `Offered: ${profiles(gpus).map(offered).join(", ")}`}</p>
    ${!isWrong && wanted.length > 0 && html`<p>The same: <${Command}
      text=${commandLine(["divvy", "admin", "mig", "plan", ...wanted])} /></p>`}
    <${Refusal} error=${error} />
    ${
      plan.length > 0 &&
      html`<${Table} caption="The plan" columns=${columns} rows=${plan}
      rowKey=${(/** @type {any} */ one) => `${one.gpu_index}@${one.start}`} />`
    }
  </section>`;
}
