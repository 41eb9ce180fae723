"""What is different in a stock agent that has this package beside it.

The agent has the whole scheduler for fractions. Three of its steps are made safe here, each around the agent's own:

- reading ``--dynamic-gpus --queue NAME=AMOUNT``: a fraction that cannot be given ends the agent there, before a task is taken;
- the two calls for runtime properties, which an open ClearML Server does not have: the agent only writes down with them what it
  decides from the list of workers, so the note is kept here;
- starting one task: a fraction that cannot be given after all ends that task as failed, with the reason in its log, and not the
  agent with the task left in progress.
"""

import functools
from typing import Any, Callable

from ._command import fraction
from ._divvy import check
from ._errors import FractionError

#: The only property that is kept here; others (a service's number of instances, a forced pause) are the server's.
_AVAILABLE = "available_gpus"

#: Where an agent keeps it.
_NOTES = "_divvy_runtime_properties"


def prepare(module: Any) -> None:
    """Prepares ``clearml_agent.commands.worker``.

    :raises AttributeError: when it is not as it was in the versions that are known.
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
            # The agent looks at its last queue alone.
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
                f"a queue of {least:g}-{most:g} GPUs: the agent would count a whole GPU where it has a part",
                f"give the queue one amount: {least:g}",
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
            print(f"Task {task_id} cannot have its fraction of a GPU: {error}")
            self.send_logs(task_id, [f"clearml-agent-fractional-gpu: {error}\n"], level="ERROR", session=session)
            self.handle_task_termination(task_id, 1, no_stop, session=session)
            return 1

    return run_one_task
