"""Hooks in a Python worker of Ray.

```text
worker starts      no slice: the limiter refuses all memory
Ray assigns GPUs   set_visible_accelerator_ids   ─► take the slice; failures are kept
task begins        record_task_log_start         ─► raise the failure as the task's own exception
task fails         format_error_message          ─► add what Divvy refused to the traceback
task ends          reset_visible_accelerator_…   ─► the worker ends: the next task has another slice
worker ends        atexit                        ─► release the slice
worker is killed   the daemon sees the pid end   ─► the slice is cancelled
```
An actor keeps its slice until its worker ends. Ray ends workers of tasks with GPUs by default as well
(``max_calls=1``), except for functions that get their ``num_gpus`` by ``options()``.
"""

import atexit
import ctypes
import functools
import os
import sys
from typing import Any, Optional

from . import _assignment, _divvy, _namespace
from ._config import Settings
from ._errors import SliceError

#: Variables of the slice that Ray sets itself: `ray.train` compares them with `ray.get_gpu_ids()`.
_RAYS_OWN = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")

_DRIVER = "libcuda.so.1"


class Worker:
    """This worker's slice, at most one in its life."""

    def __init__(self, ray: Any, settings: Settings, has_namespace: bool) -> None:
        self.ray = ray
        self.settings = settings
        self.has_namespace = has_namespace
        self.job: Optional[str] = None
        self.assignment: Optional[_assignment.Assignment] = None
        self.failure: Optional[BaseException] = None
        self.noted = 0
        self.pid = os.getpid()
        self.name: Optional[str] = None
        #: From the first call for a slice on: it may be held even where a later step fails.
        self.has_asked = False

    def assigned(self) -> None:
        """Takes the slice for what Ray has assigned to the task that begins."""
        self.failure = None
        try:
            self._take()
        except SliceError as error:
            self.failure = error
        except Exception as error:
            self.failure = SliceError.of(f"cannot enter a slice: {error!r}", "report this with the version of Ray")

    def _take(self) -> None:
        worker = self.ray._private.worker.global_worker
        visible = worker.original_visible_accelerator_ids.get("GPU")
        assignment = _assignment.read(worker.core_worker.resource_ids(), visible)
        if assignment is None or (self.job is not None and assignment == self.assignment):
            return
        if self.job is not None and self.assignment is not None:
            raise SliceError.of(
                f"this worker has a slice with {self.assignment.shown()}, and its task needs {assignment.shown()}"
            )
        check_limiter()
        _assignment.check(assignment, self.settings)
        context = self.ray.get_runtime_context()
        self.has_asked = True
        name = self.name = _assignment.slice_name(context.get_task_name() or "", context.get_worker_id())
        try:
            items = _divvy.insist(_assignment.words(assignment, self.settings, name), self.settings.wait_s)
            access = _divvy.insist([self.settings.divvy, "slice", "env", name], self.settings.wait_s)[0]
        except SliceError as error:
            reason = str(error).removeprefix("divvy: ")
            raise SliceError.of(f"no slice with {assignment.shown()} for this task: {reason}") from None
        self._enter(access)
        self.job, self.assignment = str(items[0]["job"]), assignment

    def _enter(self, access: dict[str, Any]) -> None:
        mounts = access.get("mounts") or []
        if mounts and self.has_namespace:
            _namespace.lay(mounts)
        for name, value in access["environment"].items():
            if name in _RAYS_OWN:
                continue
            if name in ("LD_PRELOAD", "LD_LIBRARY_PATH"):
                others = [part for part in os.environ.get(name, "").split(":") if part and part != value]
                value = ":".join([value, *others])
            os.environ[name] = value
        # Ray's indices are those of NVML, and CUDA has another order by default.
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def ends_worker(self) -> bool:
        """Whether this process must not serve another task: it may hold a slice, or its limiter has decided."""
        return self.has_asked or is_loaded(_DRIVER)

    def release(self) -> None:
        """Releases the slice at the end of this process: Ray has not killed it.

        Ray's forced ends (``ray.kill``, ``ray.cancel(force=True)``) and signals run no ``atexit`` function.
        """
        # A copy of this process (`os.fork`) ends without the task's end.
        if self.name is None or os.getpid() != self.pid:
            return
        _divvy.release(self.settings.divvy, self.name)

    def refusals(self) -> str:
        """The last refusal since the call before, in a sentence; empty without a refusal."""
        if self.job is None:
            return ""
        items, failure = _divvy.call([self.settings.divvy, "oom", self.job], timeout=10)
        if failure is not None or not items:
            return ""
        new = [record for record in items[0].get("records", []) if record["number"] >= self.noted]
        self.noted += len(new)
        return refusal(new[-1], self.job) if new else ""


def refusal(record: dict[str, Any], job: str) -> str:
    """A record of ``divvy oom`` in a sentence."""
    asked, used, limit = (_gib(record.get(key)) for key in ("asked_bytes", "used_bytes", "limit_bytes"))
    call = f"{record.get('api')} requested {asked} on GPU {record.get('gpu_index')}"
    return f"divvy: refused: {call}; {used} of its limit of {limit} are in use (divvy oom {job} has more)"


def _gib(value: Any) -> str:
    return f"{int(value or 0) / (1 << 30):.2f} GiB"


def is_loaded(library: str) -> bool:
    """Whether this process has loaded the library under that name."""
    try:
        ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return True


def is_mapped(name: str) -> bool:
    """Whether a file of that name is in this process."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return any(name in line for line in maps)


def check_limiter() -> None:
    """Checks that the limiter is in this process: the loader only warns about a library that it cannot load.

    :raises SliceError: when it is not.
    """
    if not is_mapped(_divvy.LIMITER):
        raise SliceError.of(
            f"{_divvy.LIMITER} is not in this worker, so nothing would hold its limit",
            "let `py_executable` keep the variable LD_PRELOAD",
        )


def install() -> None:
    """Adds the hooks to Ray in this process, before it becomes a worker.

    :raises SliceError: when Ray differs from the known versions; then the worker does not start.
    """
    has_namespace = _namespace.leave()
    settings = Settings.from_environment()
    import ray
    import ray._private.utils
    import ray._private.worker

    worker = Worker(ray, settings, has_namespace)
    attach(ray, worker)
    # After those of the task, and before that of Ray, which was registered first.
    atexit.register(worker.release)


def attach(ray: Any, worker: Worker) -> None:
    """Wraps four functions of Ray. Ray's core looks them up by name at each call.

    :raises SliceError: when Ray lacks one of them.
    """
    around = (_assigned, _ending, _explained, _begun)
    for (place, name), step in zip(_places(ray), around):
        before = getattr(place, name)
        setattr(place, name, functools.wraps(before)(step(before, worker)))


def check_ray(ray: Any) -> None:
    """Checks that Ray has the functions that :func:`attach` wraps.

    :raises SliceError: with the names that are missing.
    """
    _places(ray)


def _places(ray: Any) -> list[tuple[Any, str]]:
    utils, worker = ray._private.utils, ray._private.worker.Worker
    places = [
        (utils, "set_visible_accelerator_ids"),
        (utils, "reset_visible_accelerator_env_vars"),
        (utils, "format_error_message"),
        (worker, "record_task_log_start"),
    ]
    absent = [name for place, name in places if not callable(getattr(place, name, None))]
    if absent:
        version = getattr(ray, "__version__", "of an unknown version")
        raise SliceError.of(
            f"Ray {version} has no {', '.join(absent)}, so its tasks cannot enter a slice",
            "use Ray 2.50 or newer; 2.50 to 2.60 were tried",
        )
    return places


def _assigned(step: Any, worker: Worker) -> Any:
    def set_visible_accelerator_ids(*args: Any, **kwargs: Any) -> Any:
        before = dict(step(*args, **kwargs) or {})
        worker.assigned()
        # Ray calls the step that ends a task only where there is something to reset.
        before.setdefault("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES"))
        return before

    return set_visible_accelerator_ids


def _begun(step: Any, worker: Worker) -> Any:
    def record_task_log_start(*args: Any, **kwargs: Any) -> Any:
        worker.raise_failure()
        return step(*args, **kwargs)

    return record_task_log_start


def _explained(step: Any, worker: Worker) -> Any:
    def format_error_message(*args: Any, **kwargs: Any) -> Any:
        text = step(*args, **kwargs)
        try:
            note = worker.refusals()
        except Exception as error:  # The task's own error is what its caller needs.
            note = f"divvy: cannot read what was refused: {error!r}"
        return f"{text.rstrip()}\n{note}\n" if note else text

    return format_error_message


def _ending(step: Any, worker: Worker) -> Any:
    def reset_visible_accelerator_env_vars(*args: Any, **kwargs: Any) -> Any:
        step(*args, **kwargs)
        if worker.ends_worker() and sys.exc_info()[0] is None:
            # As Ray does at `max_calls`; the results of the task are stored by now.
            end = SystemExit(0)
            end.ray_terminate_msg = "The slice of this worker was that of its task."  # type: ignore[attr-defined]
            raise end

    return reset_visible_accelerator_env_vars
