import unittest

from pytest_divvy._api import ApiError, Daemon

from .stand_in import StandIn, WithFolder, error, items


class Calls(WithFolder):
    def daemon(self, away_s: float = 0.0) -> Daemon:
        return Daemon(str(self.folder / "divvy.sock"), away_s=away_s)

    def test_a_resize_has_the_daemons_body_and_answers_with_the_job(self) -> None:
        stand_in = self.serve(lambda *_: items({"id": "7"}))
        self.assertEqual(self.daemon().resize("7", 5 << 30, "strict=0.25"), {"id": "7"})
        self.assertEqual(self.daemon().resize("7", 1 << 30), {"id": "7"})
        amount = {"kind": "memory", "bytes": 5 << 30}
        self.assertEqual(
            stand_in.calls,
            [
                ("POST", "/v1/jobs/7/resize", {"amount": amount, "compute": "strict=0.25"}),
                ("POST", "/v1/jobs/7/resize", {"amount": {"kind": "memory", "bytes": 1 << 30}}),
            ],
        )

    def test_a_refusal_has_the_daemons_code_and_words(self) -> None:
        self.serve(lambda *_: error(409, "would_wait", "GPU 0: 3 GiB free", "wait"))
        with self.assertRaises(ApiError) as raised:
            self.daemon().job("7")
        self.assertEqual((raised.exception.code, str(raised.exception)), ("would_wait", "GPU 0: 3 GiB free (wait)"))

    def test_an_answer_of_another_program_is_an_error_and_no_crash(self) -> None:
        for status, document in ((200, b"<html>"), (200, {"items": 3}), (500, {"error": []}), (200, {"items": [1, 2]}), (404, b"")):
            stand_in = StandIn(self.folder / "divvy.sock", lambda *_, a=(status, document): a)
            try:
                with self.assertRaises(ApiError, msg=document) as raised:
                    self.daemon().node()
                self.assertEqual(raised.exception.code, "internal")
            finally:
                stand_in.close()

    def test_a_call_waits_for_a_daemon_that_restarts_and_not_for_ever(self) -> None:
        with self.assertRaises(ApiError) as raised:
            self.daemon().node()
        self.assertEqual(raised.exception.code, "no_daemon")
        pauses = []

        def start(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                self.serve(lambda *_: items({"version": "0.1.0"}))

        daemon = Daemon(str(self.folder / "divvy.sock"), away_s=30, now=lambda: len(pauses) * 1.0, sleep=start)
        self.assertEqual(daemon.node(), {"version": "0.1.0"})
        self.assertEqual(len(pauses), 3)

    def test_a_session_without_its_daemon_waits_once(self) -> None:
        pauses: list[float] = []
        daemon = Daemon(str(self.folder / "divvy.sock"), away_s=3, now=lambda: len(pauses) * 1.0, sleep=pauses.append)
        for _ in range(2):
            with self.assertRaises(ApiError):
                daemon.node()
            self.assertEqual(len(pauses), 3)


if __name__ == "__main__":
    unittest.main()
