"""The field `divvy` of a runtime environment."""

import os
import unittest
from typing import Any
from unittest import mock

from divvy_ray import SliceError
from divvy_ray._config import Settings, parse


class Parsed(unittest.TestCase):
    def test_what_a_user_writes_reaches_the_worker(self) -> None:
        self.assertEqual(parse({}), Settings())
        self.assertEqual(parse(True), Settings())
        settings = parse({"gpu": 0.25, "gpu_memory": "8G", "compute": "strict=0.25", "wait_s": 5})
        with mock.patch.dict(os.environ, {"DIVVY_RAY": settings.to_text()}):
            self.assertEqual(Settings.from_environment(), settings)
        self.assertEqual(settings.wait_s, 5.0)

    def test_an_unknown_key_or_value_is_named_and_long_ones_are_cut(self) -> None:
        wrong: list[tuple[Any, str]] = [
            (None, "divvy=None is not an object"),
            (0.25, "divvy=0.25 is not an object"),
            ({"gpus": 1}, "no key 'gpus'; its keys are compute, gpu, gpu_memory, wait_s"),
            ({"gpu": 0}, "divvy.gpu=0 "),
            ({"gpu": float("nan")}, "divvy.gpu=nan"),
            ({"gpu": True}, "divvy.gpu=True is not a number"),
            ({"gpu": "1"}, "divvy.gpu='1' is not a number"),
            ({"gpu_memory": "8"}, "divvy.gpu_memory='8' is not a size"),
            ({"gpu_memory": "8G --user x"}, "is not a size"),
            ({"gpu_memory": "9" * 1000 + "G"}, "is not a size"),
            ({"compute": "fair; rm"}, "is not fair"),
            ({"wait_s": 1e9}, "is not between 0 and 3600 seconds"),
            ({"x" * 100_000: 1}, "no key 'xxx"),
        ]
        for value, expected in wrong:
            with self.assertRaises(ValueError) as caught:
                parse(value)
            self.assertIn(expected, str(caught.exception))
            self.assertLess(len(str(caught.exception)), 250)

    def test_a_worker_with_a_damaged_variable_reports_it(self) -> None:
        for text in ("", "{", "[]", '{"unknown": 1}'):
            with mock.patch.dict(os.environ, {"DIVVY_RAY": text}), self.assertRaisesRegex(SliceError, "DIVVY_RAY"):
                Settings.from_environment()
