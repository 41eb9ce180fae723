import os
from typing import Any
from unittest import mock

from pytest_divvy import _divvy
from pytest_divvy._divvy import NoSlices, SetupError, choose
from pytest_divvy._session import SessionFolder

from .stand_in import GIB, WithFolder, error, items

NODE = {"version": "0.1.0", "protocols": {"api": 1}, "system": False}


def gpu(index: int, mode: str = "shared", **more: Any) -> dict[str, Any]:
    return {
        "index": index,
        "mode": mode,
        "model": "NVIDIA A100-SXM4-80GB",
        "available": {"share": 1000, "memory_bytes": 79 * GIB},
        "context_overhead_bytes": 435159040,
        "slices": [],
        **more,
    }


class Choice(WithFolder):
    def setUp(self) -> None:
        super().setUp()
        names = ("DIVVY_SLICE", "DIVVY_JOB_ID", "XDG_RUNTIME_DIR", _divvy.PROGRAM)
        kept = {name: value for name, value in os.environ.items() if name not in names}
        around = mock.patch.dict(
            os.environ, {**kept, "PATH": str(self.folder), "DIVVY_HOME": str(self.folder)}, clear=True
        )
        around.start()
        self.addCleanup(around.stop)
        sessions = self.folder / "sessions"
        sessions.mkdir()
        self.session = SessionFolder(sessions)
        self.addCleanup(self.session.remove)

    def divvy(self, lines: str) -> None:
        file = self.folder / "divvy"
        file.write_text(f"#!/bin/sh\n{lines}\n")
        file.chmod(0o755)

    def refused(self, kind: type, words: str, sim: Any = None) -> None:
        with self.assertRaises(kind) as raised:
            choose(self.session, sim)
        self.assertIn(words, str(raised.exception))

    def test_a_session_without_divvy_or_in_a_slice_has_no_slices(self) -> None:
        self.refused(NoSlices, "there is no `divvy` on the PATH")
        self.refused(SetupError, "--divvy-sim needs `divvy`", "l4-24gb:1")
        with mock.patch.dict(os.environ, {"DIVVY_SLICE": "/slices/7", "DIVVY_JOB_ID": "7"}):
            self.refused(NoSlices, "this session runs in the slice of job 7", "l4-24gb:1")
        with mock.patch.dict(os.environ, {_divvy.PROGRAM: "/none/divvy"}):
            self.refused(SetupError, "/none/divvy is not a program")

    def test_a_machine_without_a_gpu_has_no_slices_and_another_failure_is_one(self) -> None:
        answer = '{"error":{"code":"CODE","message":"no GPU found on this machine"}}'
        self.divvy(f"echo '{answer.replace('CODE', 'no_daemon')}' >&2; exit 7")
        self.refused(NoSlices, "no GPU found on this machine")
        self.divvy(f"echo '{answer.replace('CODE', 'unresponsive')}' >&2; exit 7")
        self.refused(SetupError, "`divvy gpus`: no GPU found")
        self.divvy("echo 'Segmentation fault' >&2; exit 139")
        self.refused(SetupError, "Segmentation fault")

    def test_a_private_daemon_that_does_not_start_is_named_with_its_reason(self) -> None:
        self.divvy('echo "error: no model is called x100" >&2; exit 2')
        with mock.patch.object(_divvy, "_START_S", 20.0):
            self.refused(SetupError, "the private daemon does not start: no model is called x100", "x100:1")

    def test_a_running_daemon_is_used_and_its_shared_gpus(self) -> None:
        self.divvy("exit 1")
        answers = {"/v1/node": items(NODE), "/v1/gpus": items(gpu(0), gpu(1, "mig"), gpu(2, lost="it fell off the bus"), gpu(3))}
        self.serve(lambda method, path, body: answers[path])
        service = choose(self.session, None)
        self.assertEqual([one.index for one in service.gpus], [0, 3])
        self.assertEqual(service.gpus[0].floor, 416 << 20)
        self.assertIsNone(service.keeper)
        self.assertEqual(service.shown(), "2 x NVIDIA A100-SXM4-80GB, your daemon (divvy 0.1.0)")
        answers["/v1/gpus"] = items(gpu(0, "mig"))
        self.refused(SetupError, "no GPU has room for slices: GPU 0 has the mode mig")
        answers["/v1/gpus"] = items()
        self.refused(SetupError, "the daemon serves no GPU")

    def test_a_daemon_of_another_api_or_without_an_answer_is_refused(self) -> None:
        self.divvy("exit 1")
        answers = {"/v1/node": items({**NODE, "protocols": {"api": 2}})}
        self.serve(lambda method, path, body: answers[path])
        self.refused(SetupError, "has version 2 of its API, and pytest-divvy speaks 1")
        answers["/v1/node"] = error(403, "not_allowed", "uid 1000 may not read")
        self.refused(SetupError, "uid 1000 may not read")
