"""Patches the stock ClearML agent for use with Divvy.

The agent has the scheduler for fractions. This module wraps three of its steps:

- Parsing ``--dynamic-gpus --queue NAME=AMOUNT``: if Divvy cannot allocate the fraction, the agent ends before it takes
  a task.
- The two calls for runtime properties, which an open ClearML Server does not have. The agent only stores in them the
  GPUs that it has computed from the list of workers, so this module keeps the value in memory.
- Starting a task: if the fraction fails now, the task ends as failed, with the reason in its log. Without the patch,
  the agent would end and leave the task in progress.
"""

import functools
from typing import Any, Callable

from ._command import fraction
from ._divvy import check
from ._errors import FractionError

#: The only property that this module keeps; others (number of service instances, a forced pause) need the server.
_AVAILABLE = "available_gpus"

#: The agent's attribute that holds it.
_NOTES = "_divvy_runtime_properties"

#: The agent's slots that no worker is registered for yet.
_RESERVATIONS = "_dynamic_gpus_reservations"


def prepare(module: Any) -> None:
    """Patches ``clearml_agent.commands.worker``.

    :raises AttributeError: when the module differs from the known versions.
    """
    worker = module.Worker
    reason = module.TaskStopReason.no_stop
    steps: dict[str, Callable[[Any], Any]] = {
        "_parse_dynamic_gpus": _checked,
        "get_runtime_properties": _with_notes,
        "set_runtime_properties": _noted,
        "run_one_task": lambda step: _failing_the_task(step, reason),
    }
    before = {name: getattr(worker, name) for name in steps}
    for name, around in steps.items():
        setattr(worker, name, around(before[name]))


def _checked(parse: Any) -> Any:
    @functools.wraps(parse)
    def parse_dynamic_gpus(self: Any, kwargs: dict[str, Any], queues: Any) -> Any:
        answer = parse(self, kwargs, queues)
        amounts, gpus, _ = answer
        below_one = [(least, most) for _, (least, most) in amounts or () if least < 1]
        if below_one:
            # The agent itself checks only its last queue.
            self._dynamic_gpus = "fractional"
            _check_amounts(below_one)
            ends = kwargs.get("stop", False) is not False or kwargs.get("status", False)
            if not ends:
                print(f"Fractional GPUs: {check(gpus)}")
        return answer

    return parse_dynamic_gpus


def _check_amounts(amounts: list[tuple[float, float]]) -> None:
    for least, most in amounts:
        fraction(least)
        if least != most:
            raise FractionError(
                f"queue amount {least:g}-{most:g} GPUs: the agent would count a fraction as a whole GPU",
                f"give the queue a single amount: {least:g}",
            )


def _with_notes(read: Any) -> Any:
    @functools.wraps(read)
    def get_runtime_properties(self: Any) -> Any:
        answer = read(self)
        notes: dict[str, str] = getattr(self, _NOTES, {})
        if answer is None and notes:
            return [{"key": key, "value": value} for key, value in notes.items()]
        return answer

    return get_runtime_properties


def _noted(write: Any) -> Any:
    @functools.wraps(write)
    def set_runtime_properties(self: Any, key: str, value: Any) -> Any:
        if write(self, key, value):
            return True
        if key != _AVAILABLE:
            return False
        notes: dict[str, str] = getattr(self, _NOTES, {})
        setattr(self, _NOTES, {**notes, key: str(value)})
        return True

    return set_runtime_properties


def _failing_the_task(run: Any, no_stop: Any) -> Any:
    @functools.wraps(run)
    def run_one_task(self: Any, queue: Any, task_id: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return run(self, queue, task_id, *args, **kwargs)
        except FractionError as error:
            session = kwargs.get("task_session")
            print(f"Task {task_id}: cannot allocate its fraction of a GPU: {error}")
            self.send_logs(task_id, [f"clearml-agent-fractional-gpu: {error}\n"], level="ERROR", session=session)
            self.handle_task_termination(task_id, 1, no_stop, session=session)
            _drop_reservation(self)
            return 1

    return run_one_task


def _drop_reservation(worker: Any) -> None:
    """Frees the slot of a task that was not started.

    Newer agents (commit ac65a93, August 2026) reserve a slot from its naming until its worker is on the server's list,
    or for 600 s. A task that ends here never registers, so its share of the GPU would stay idle that long. The worker's
    id is still the slot's: ``node1:gpu2.25a``, ``node1:gpu0,1``.
    """
    reservations = getattr(worker, _RESERVATIONS, None)
    if not isinstance(reservations, dict):
        return
    slot = str(getattr(worker, "worker_id", "")).rsplit(":gpu", 1)[-1]
    for suffix in slot.split(","):
        reservations.pop(suffix, None)
