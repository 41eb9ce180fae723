"""The part of pytest's own process: it prepares a slice for each worker, and keeps the file of peaks."""

import json
import os
import shlex
import sys
import uuid
from pathlib import Path
from typing import Any, Optional, Sequence

import pytest

from . import _divvy, _peaks
from ._amounts import MIB, down, shown
from ._session import SessionFolder
from ._settings import WorkerSettings


class Controller:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.file = peaks_file(config)
        self.before = _peaks.Peaks()
        self.service: Optional[_divvy.Service] = None
        self.folder: Optional[SessionFolder] = None
        self.session = f"pytest-{uuid.uuid4().hex[:8]}"
        self.settings: dict[str, WorkerSettings] = {}
        self.peaks = _peaks.Peaks()
        self.measured = self.refused = self.repeated = self.unknown = 0
        self.note = ""

    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: Sequence[Any]) -> None:
        workers = [spec for spec in specs if spec.popen]
        self.folder = SessionFolder()
        try:
            self.service = _divvy.choose(self.folder, config.getoption("divvy_sim"))
            self.before = _peaks.read(self.file)
            self._prepare(workers)
        except _divvy.NoSlices as reason:
            self._say(f"{reason}: tests run as without it")
            self._close()
            return
        except (_divvy.SetupError, _peaks.PeaksError) as error:
            self._close()
            raise pytest.UsageError(f"pytest-divvy: {error}") from None
        except BaseException:
            self._close()
            raise
        self.peaks = _peaks.Peaks({} if config.getoption("divvy_measure") else self.before.needs)
        known = f"{len(self.before.needs)} peaks in {self._shown_file()}" if self.before.needs else "no peaks known"
        self._say(f"{len(workers)} workers on {self.service.shown()}; {known}")
        if len(workers) < len(specs):
            self._say(f"{len(specs) - len(workers)} workers on other machines have no slice")

    def _prepare(self, specs: Sequence[Any]) -> None:
        """Gives each worker its GPU, in turn, and the command line that enters a slice there."""
        assert self.service is not None and self.folder is not None
        service = self.service
        unmeasured = str(self.config.getini("divvy_unmeasured"))
        if unmeasured not in ("share", "alone"):
            raise _divvy.SetupError(f"divvy_unmeasured is 'share' or 'alone', not {unmeasured!r}")
        counts = {gpu.index: len(specs[place :: len(service.gpus)]) for place, gpu in enumerate(service.gpus)}
        for place, spec in enumerate(specs):
            gpu = service.gpus[place % len(service.gpus)]
            fit = gpu.room // gpu.floor
            if counts[gpu.index] > fit:
                fits = sum(gpu.room // gpu.floor for gpu in service.gpus)
                raise _divvy.SetupError(
                    f"{len(specs)} workers do not fit: each needs {shown(gpu.floor)} for its context, and GPU "
                    f"{gpu.index} has {shown(gpu.room)} free; use -n {max(fits, 1)}"
                )
            share = max(down(gpu.room // counts[gpu.index], 2 * MIB), gpu.floor)
            entry = {
                "divvy": service.divvy,
                "home": service.home,
                "system": service.system,
                "parent": os.getpid(),
                "gpu": gpu.index,
                "start_mib": share // MIB,
                "name": f"{self.session}-{spec.id}",
            }
            program = shlex.split(spec.python) if spec.python else [sys.executable]
            place = str(Path(__file__).parent.parent)
            entering = [sys.executable, "-c", _divvy.RUN_MODULE, place, "_enter", json.dumps(entry)]
            spec.python = shlex.join([*entering, "--", *program])
            self.settings[spec.id] = WorkerSettings(
                socket=service.socket,
                folder=str(self.folder.path),
                peaks=str(self.file),
                session=self.session,
                gpu=gpu.index,
                floor=gpu.floor,
                share=share,
                alone=unmeasured == "alone",
                context=gpu.context,
                wait_s=float(self.config.getini("divvy_wait") or 600),
                private=service.home is not None,
            )

    def pytest_configure_node(self, node: Any) -> None:
        settings = self.settings.get(node.gateway.id) or self._of_replaced(node)
        if settings is not None:
            node.workerinput["divvy"] = settings.carried()

    def _of_replaced(self, node: Any) -> Optional[WorkerSettings]:
        """The settings of a worker that replaces a crashed one: it has the same command line and a new id."""
        python = node.gateway.spec.python or ""
        return next((kept for name, kept in self.settings.items() if f"{self.session}-{name}\"" in python), None)

    def pytest_runtest_logreport(self, report: Any) -> None:
        measured = getattr(report, "divvy", None)
        if not isinstance(measured, dict):
            return
        self.measured += 1
        self.refused += bool(measured["denied"])
        self.repeated += bool(measured["repeated"])
        if not measured["known"]:
            self.unknown += 1
            return
        need = _peaks.Need(int(measured["peak"]), int(measured["growth"]))
        self.peaks.note(report.nodeid, need, bool(measured["passed"]))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if self.service is None or not self.measured:
            return
        number = _peaks.changed(self.before, self.peaks)
        try:
            written = _peaks.write(self.file, self.peaks)
        except OSError as error:
            self.note = f"cannot write {self._shown_file()}: {error}"
            return
        self.note = f"{number} peaks changed in {self._shown_file()}" if written else "no peak changed"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.service is None:
            return
        parts = [f"{self.measured} tests measured"]
        if self.repeated:
            parts.append(f"{self.repeated} repeated alone, because their slice was too small")
        if self.refused:
            parts.append(f"{self.refused} refused memory")
        if self.unknown:
            parts.append(f"{self.unknown} peaks unknown, because the daemon is of an earlier version")
        terminalreporter.write_line(f"pytest-divvy: {', '.join([*parts, self.note or 'no peaks written'])}")

    def pytest_unconfigure(self) -> None:
        self._close()

    def _close(self) -> None:
        service, self.service = self.service, None
        folder, self.folder = self.folder, None
        try:
            if service is not None:
                _divvy.stop(service)
        finally:
            if folder is not None:
                folder.remove()

    def _shown_file(self) -> str:
        try:
            return str(self.file.relative_to(self.config.invocation_params.dir))
        except ValueError:
            return str(self.file)

    def _say(self, text: str) -> None:
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(f"pytest-divvy: {text}")


def peaks_file(config: pytest.Config) -> Path:
    """The file of `divvy_peaks`, else one in pytest's cache."""
    configured = config.getini("divvy_peaks")
    if configured:
        return Path(config.rootpath, str(configured))
    cache = getattr(config, "cache", None)
    folder = Path(str(cache.mkdir("divvy"))) if cache is not None else config.rootpath / ".pytest_cache/d/divvy"
    return folder / "peaks.txt"
