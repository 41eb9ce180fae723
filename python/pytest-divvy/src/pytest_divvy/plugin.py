"""The plugin that pytest loads: options, the mark ``gpu``, and which part runs in this process."""

from typing import Generator

import pytest

from ._settings import WorkerSettings


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("divvy", "GPU tests in slices (pytest-divvy)")
    group.addoption(
        "--divvy",
        action="store_true",
        help="run tests in slices of GPUs also without -n: in one worker, which measures their peaks",
    )
    group.addoption(
        "--no-divvy", action="store_false", dest="divvy_slices", default=True, help="run workers without slices"
    )
    group.addoption(
        "--divvy-sim", metavar="MODEL:N", help="use simulated GPUs of a private daemon, such as a100-80gb:1"
    )
    group.addoption(
        "--divvy-measure", action="store_true", help="measure all peaks anew, and forget those of other tests"
    )
    # No option of the command line: pytest would take the file for a path of tests when it looks for its root folder, and
    # so the ids of tests would differ once the file is there.
    parser.addini("divvy_peaks", "the file of peaks, relative to the root folder (default: one in pytest's cache)")
    parser.addini(
        "divvy_unmeasured", "a test that was never measured has an equal share, or runs alone: share, alone", default="share"
    )
    parser.addini("divvy_wait", "seconds that a test waits for memory that other programs hold (600)", default="600")


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    is_worker = hasattr(config, "workerinput")
    wants = not is_worker and (config.getoption("divvy") or config.getoption("divvy_sim"))
    if wants and config.getoption("numprocesses", None) is None and not config.getoption("tx", None):
        # One worker: a process enters a slice at its start only, and this one has started.
        config.option.numprocesses = 0 if config.getoption("usepdb", False) else 1
    return (yield)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "gpu(memory='6G', compute='strict=0.25'): the GPU memory that the test gets, and its share of compute time "
        "(pytest-divvy)",
    )
    workerinput = getattr(config, "workerinput", None)
    if workerinput is not None:
        settings = WorkerSettings.of(workerinput)
        if settings is not None:
            from ._worker import Worker

            config.pluginmanager.register(Worker(config, settings), "divvy-worker")
        return
    if not config.getoption("divvy_slices") or config.getoption("collectonly"):
        return
    if config.getoption("dist", "no") != "no" and config.getoption("tx", None):
        from ._controller import Controller

        config.pluginmanager.register(Controller(config), "divvy-controller")
