"""The part of a worker: it gives its slice the size of each test, and reads what the test used.

```text
collection      an equal share of the GPU: modules may use it while they are imported
before a test   the size that it needs: its mark, its known peak, or an equal share of the GPU
                ─► wait for the turn, then for room ─► the daemon resizes the slice
test            the limiter refuses what exceeds the slice
after it        peak and refusals ─► report; frees caches; the slice shrinks to what is still held
                refused, and the size was not the test's own wish ─► once more, with all memory of the GPU
```
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Generator, Optional

import pytest

from . import _caches, _peaks
from ._amounts import STEP, AmountError, parse, shown, up, with_margin
from ._api import ApiError, Daemon
from ._settings import WorkerSettings
from ._turns import Turns

#: Between two attempts to get memory: the daemon frees the memory of a slice that shrank within a quarter of a second.
_PAUSE_S = 0.02

#: After this time without any other test on the GPU, no memory of this session comes back any more: the daemon looks at
#: slices four times a second, and the driver returns the memory of an ended process within 2 s.
_SETTLED_S = 3.0

_FITS_NOT = ("would_wait", "conflict")


class NoRoom(Exception):
    """A test gets no memory."""


@dataclass
class Size:
    """How much memory a test is to have."""

    bytes: int
    #: The test's own wish: a refusal is the test's result.
    is_wish: bool = False
    #: All memory that is free on the GPU.
    is_all: bool = False
    #: The test is known to use no GPU.
    is_none: bool = False
    compute: Optional[str] = None


@dataclass
class State:
    """The slice, as the daemon reports it."""

    limit: int
    used: int
    peak: int
    denied: int
    #: Whether the peak is that of the time since the last resize, and not since the start of the worker.
    is_recent: bool = True

    @classmethod
    def of(cls, job: dict[str, Any]) -> "State":
        if not job.get("slices"):
            raise ApiError("internal", f"job {job.get('id')} of this worker holds no slice any more")
        one = job["slices"][0]
        # A daemon of an earlier version has the peak since the start of the worker alone.
        peak = one.get("memory_recent_peak_bytes")
        return cls(
            int(one.get("memory_target_bytes") or one["memory_limit_bytes"]),
            int(one["memory_used_bytes"]),
            int(one["memory_peak_bytes"] if peak is None else peak),
            int(one["denials"]),
            peak is not None,
        )


@dataclass
class Attempt:
    size: Size
    before: State
    error: str = ""


class Worker:
    def __init__(
        self,
        config: pytest.Config,
        settings: WorkerSettings,
        daemon: Optional[Daemon] = None,
        turns: Optional[Turns] = None,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.config = config
        self.settings = settings
        self.daemon = daemon or Daemon(settings.socket)
        self.turns = turns or Turns(Path(settings.folder), settings.gpu)
        self.job = os.environ.get("DIVVY_JOB_ID", "")
        self.peaks = _peaks.read(Path(settings.peaks))
        self.now, self.sleep = now, sleep
        self.state = State(settings.share, 0, 0, 0)
        self.compute: Optional[str] = None
        self.reports: Optional[list[tuple[str, dict[str, Any]]]] = None
        self.is_repeating = False
        self.error = ""
        if settings.private:
            os.environ.pop("DIVVY_HOME", None)

    # Hooks.

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.session = session
        interactor = next(
            (one for one in self.config.pluginmanager.get_plugins() if type(one).__name__ == "WorkerInteractor"), None
        )
        if interactor is None:
            raise pytest.UsageError("pytest-divvy: this pytest-xdist has no WorkerInteractor; use 3.0 or newer")
        send = interactor.sendevent

        def sendevent(name: str, **values: Any) -> None:
            if name == "testreport" and self.reports is not None:
                self.reports.append((name, values))
            else:
                send(name, **values)

        interactor.sendevent = sendevent
        self.send = send

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        self._give_back(None)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: Optional[pytest.Item]
    ) -> Generator[None, object, object]:
        if self.is_repeating:
            return (yield)
        first = self._begin(self._size(item))
        failed, should = self.session.testsfailed, (self.session.shouldfail, self.session.shouldstop)
        self.reports = []
        try:
            result = yield
            attempt, after, again = first, self._measure(), False
            if self._is_worth_repeating(first, after):
                again = self._repeat(item, nextitem, first, (failed, should))
            if again:
                attempt, after = self._second, self._measure()
            self._tell(attempt, after, again)
        finally:
            self._flush()
            self._end(nextitem)
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self.error:
            pytest.fail(f"pytest-divvy: {self.error}", pytrace=False)

    # One test.

    def _size(self, item: pytest.Item) -> "Size | str":
        """The size for a test, or what is wrong with its mark."""
        mark = item.get_closest_marker("gpu")
        values = {} if mark is None else mark.kwargs
        if mark is not None and (mark.args or values.keys() - {"memory", "compute"}):
            return f"@pytest.mark.gpu takes memory= and compute=, not {mark.args or sorted(values)}"
        compute = values.get("compute")
        if "memory" in values:
            try:
                size = parse(values["memory"])
            except AmountError as error:
                return f"@pytest.mark.gpu(memory=…): {error}"
            # Wider fixtures and caches, which the worker holds beside its context, are not this test's.
            return Size(up(size + max(self.state.used - self.settings.context, 0), STEP), True, compute=compute)
        need = self.peaks.of(item.nodeid)
        if need is None and self.settings.alone:
            return Size(0, is_all=True, compute=compute)
        if need is None:
            return Size(max(self.settings.share, self.state.used), compute=compute)
        if need == _peaks.NOTHING:
            return Size(self._least(), is_none=True, compute=compute)
        return Size(with_margin(max(need.peak, self.state.used + need.growth)), compute=compute)

    def _least(self) -> int:
        return max(self.settings.floor, up(self.state.used, STEP))

    def _begin(self, size: "Size | str") -> Attempt:
        """Gives the slice the size. A failure becomes the failure of the test's setup."""
        self.error = ""
        try:
            if isinstance(size, str):
                raise NoRoom(size)
            if size.is_all or size.bytes > self._least():
                self._take(size)
            elif not size.is_none or size.bytes != self.state.limit or size.compute != self.compute:
                self._resize(size.bytes, size.compute)
        except (NoRoom, ApiError) as error:
            self.error = str(error)
        return Attempt(size if isinstance(size, Size) else Size(0, True), self.state, self.error)

    def _take(self, size: Size) -> None:
        self.turns.begin(lambda: self._resize(self._least()))
        try:
            self.turns.use(size.is_all)
            if size.is_all:
                size.bytes = self._all()
            self._wait_for(size)
        finally:
            self.turns.end()

    def _wait_for(self, size: Size) -> None:
        """Asks the daemon for the size until it is there.

        :raises NoRoom: when there is no room for it, or not in time.
        """
        begin = self.now()
        while True:
            try:
                return self._resize(size.bytes, size.compute)
            except ApiError as error:
                if error.code not in _FITS_NOT:
                    raise
                waited = self.now() - begin
                if waited > _SETTLED_S and (size.is_all or self.turns.is_alone()) and not self._held_by_others():
                    raise NoRoom(f"{shown(size.bytes)} for this test: {self._held()}") from None
                if waited > self.settings.wait_s:
                    raise NoRoom(f"{shown(size.bytes)} for this test after {waited:.0f} s: {error.message}") from None
            self.sleep(_PAUSE_S)

    def _all(self) -> int:
        """The largest size that the slice can have, once the slices of the other workers have shrunk."""
        before, begin = -1, self.now()
        while True:
            gpu = self._gpu()
            room = int((gpu.get("available") or {}).get("memory_bytes") or 0) + self._own(gpu)
            if room == before or self.now() - begin > _SETTLED_S:
                return max(room // STEP * STEP, self._least())
            before = room
            # Longer than the daemon's look at slices that are to shrink.
            self.sleep(0.3)

    def _gpu(self) -> dict[str, Any]:
        return next(gpu for gpu in self.daemon.gpus() if int(gpu["index"]) == self.settings.gpu)

    def _own(self, gpu: dict[str, Any]) -> int:
        return sum(int(one["memory_limit_bytes"]) for one in gpu["slices"] if str(one["job"]) == self.job)

    def _workers(self) -> dict[str, str]:
        """The names of the session's jobs by their numbers."""
        jobs = self.daemon.call("GET", f"/v1/jobs?name={self.settings.session}-*")
        return {str(job["id"]): str(job["name"]).rsplit("-", 1)[-1] for job in jobs}

    def _held_by_others(self) -> int:
        """Memory that jobs outside this session hold on the GPU."""
        workers, gpu = self._workers(), self._gpu()
        return sum(int(one["memory_limit_bytes"]) for one in gpu["slices"] if str(one["job"]) not in workers)

    def _held(self) -> str:
        workers = self._workers()
        held = [
            f"{workers[str(one['job'])]} {shown(int(one['memory_limit_bytes']))}"
            for one in self._gpu()["slices"]
            if str(one["job"]) in workers and str(one["job"]) != self.job
        ]
        return (
            f"between their tests, other workers keep {', '.join(held) or 'nothing'} for contexts, wider fixtures and "
            "caches; use fewer workers (-n), or free that memory"
        )

    def _resize(self, size: int, compute: Optional[str] = None) -> None:
        wanted = None if compute == self.compute else (compute or "fair")
        answer = State.of(self.daemon.resize(self.job, size, wanted))
        self.compute = compute
        # The answer is from before the limits are written, and the peak is measured from then on.
        peak = answer.used if answer.is_recent else answer.peak
        self.state = State(size, answer.used, peak, answer.denied, answer.is_recent)
        _caches.show_total(size)

    # After the test.

    def _measure(self) -> State:
        try:
            return State.of(self.daemon.job(self.job))
        except ApiError as error:
            self.error = self.error or str(error)
            return self.state

    def _is_worth_repeating(self, attempt: Attempt, after: State) -> bool:
        size = attempt.size
        if attempt.error or size.is_wish or size.is_all or after.denied == attempt.before.denied:
            return False
        return not self.session.shouldstop

    def _repeat(self, item: pytest.Item, nextitem: Optional[pytest.Item], first: Attempt, kept: Any) -> bool:
        """Runs the test once more with all memory. Its first reports are dropped; whether it ran."""
        reports = self.reports or []
        self.turns.rest()
        if any(values["data"]["when"] == "setup" and values["data"]["outcome"] == "failed" for _, values in reports):
            # A wider fixture may have failed, and pytest would raise its error again.
            self.session._setupstate.teardown_exact(None)
        _caches.free()
        self.state = self._measure()
        self._second = self._begin(Size(0, is_all=True, compute=first.size.compute))
        if self._second.error or self._second.size.bytes <= first.size.bytes:
            # There is no more than the test had.
            self.error = ""
            return False
        self.session.testsfailed, (self.session.shouldfail, self.session.shouldstop) = kept
        self.reports = []
        self.is_repeating = True
        try:
            item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        finally:
            self.is_repeating = False
        return True

    def _tell(self, attempt: Attempt, after: State, repeated: bool) -> None:
        """Adds the figures to the reports of the test."""
        reports = [values["data"] for _, values in self.reports or []]
        if not reports or attempt.error:
            return
        denied = after.denied - attempt.before.denied
        held = max(attempt.before.used, min(self.settings.context, after.peak))
        passed = all(report["outcome"] != "failed" for report in reports)
        growth = max(after.peak - held, 0)
        reports[-1]["divvy"] = {
            # A test that adds nothing to a context needs no more than the least slice.
            "peak": after.peak if growth else 0,
            "growth": growth,
            # The peak since the start of the worker is this test's only if it rose.
            "known": after.is_recent or after.peak > attempt.before.peak or not after.peak,
            "denied": denied,
            "passed": passed,
            "repeated": repeated,
        }
        if passed or not (after.peak or denied):
            return
        text = self._figures(attempt, after, denied)
        for report in reports:
            if report["outcome"] == "failed":
                report["sections"] = [*report["sections"], ("GPU memory (divvy)", text)]

    def _figures(self, attempt: Attempt, after: State, denied: int) -> str:
        source = "asked for by its mark" if attempt.size.is_wish else "all of the GPU" if attempt.size.is_all else "given"
        lines = [f"peak {shown(after.peak)} of its limit of {shown(attempt.size.bytes)} ({source})"]
        held = max(attempt.before.used - self.settings.context, 0)
        if held >= STEP:
            lines.append(f"{shown(held)} of it was held before the test, by wider fixtures and caches")
        if denied:
            lines.append(f"refused {denied} times" if denied > 1 else "refused once")
            lines += [_refusal(record) for record in self._refusals()[-min(denied, 3) :]]
        return "\n".join(lines)

    def _refusals(self) -> list[dict[str, Any]]:
        try:
            return self.daemon.refusals(self.job)
        except ApiError:
            return []

    def _flush(self) -> None:
        reports, self.reports = self.reports or [], None
        for name, values in reports:
            self.send(name, **values)

    def _end(self, nextitem: Optional[pytest.Item]) -> None:
        try:
            # The next test often needs as much, and then keeps it unless another worker waits.
            self._give_back(None if nextitem is None else self._size(nextitem))
        finally:
            self.turns.rest()

    def _give_back(self, following: "Size | str | None") -> None:
        """Gives back what the slice no longer holds."""
        try:
            self.state = self._kept(self._measure())
            if self.state.used > self.settings.context:
                _caches.free()
                self.state = self._kept(self._measure())
            is_same = isinstance(following, Size) and following.bytes == self.state.limit
            if not is_same or self.turns.is_awaited():
                self._resize(self._least())
        except ApiError as error:
            # The slice keeps its size; the next test asks again.
            self.error = str(error)

    def _kept(self, now: State) -> State:
        return State(self.state.limit, now.used, now.peak, now.denied, now.is_recent)


def _refusal(record: dict[str, Any]) -> str:
    asked, used, limit = (shown(int(record.get(key) or 0)) for key in ("asked_bytes", "used_bytes", "limit_bytes"))
    return f"{record.get('api')} requested {asked} with {used} of {limit} in use ({record.get('program')})"


