"""What Ray assigns, and what Divvy is asked for."""

import os
import pickle
import unittest

from divvy_ray import SliceError
from divvy_ray._assignment import Assignment, check, read, slice_name, words
from divvy_ray._config import Settings

from .stand_in import IN_GROUP, NO_GPU, QUARTER, TWO_WHOLE


class Read(unittest.TestCase):
    def test_gpus_and_amounts_are_rays_own(self) -> None:
        self.assertEqual(read(QUARTER, None), Assignment(("0",), 250))
        self.assertEqual(read(TWO_WHOLE, None), Assignment(("0", "1"), 1000))
        self.assertEqual(read(IN_GROUP, None), Assignment(("1",), 500), "a bundle counts once")
        self.assertIsNone(read(NO_GPU, None))
        self.assertIsNone(read({}, None))
        uuids = ["GPU-a", "GPU-b"]
        self.assertEqual(read(TWO_WHOLE, uuids), Assignment(("GPU-a", "GPU-b"), 1000))
        self.assertEqual(read(IN_GROUP, uuids), Assignment(("GPU-b",), 500))

    def test_parts_round_down_so_that_tasks_of_one_gpu_fit_it(self) -> None:
        for count in (3, 7, 11, 50):
            # Ray rounds to ten-thousandths.
            amount = int(10_000 / count) / 10_000
            part = read({"GPU": [(0, amount)]}, None)
            assert part is not None
            self.assertLessEqual(part.thousandths * count, 1000)
            self.assertLess(amount * 1000 - part.thousandths, 1)
        self.assertEqual(read({"GPU": [(0, 0.29)]}, None), Assignment(("0",), 290), "0.29 * 1000 is 289.99…")

    def test_what_divvy_cannot_allocate_is_refused_with_the_values(self) -> None:
        with self.assertRaisesRegex(SliceError, "num_gpus=0.0002 is less than 0.001"):
            read({"GPU": [(0, 0.0002)]}, None)
        with self.assertRaisesRegex(SliceError, "Ray assigned GPU 3, but .* has only 2 GPUs"):
            read({"GPU": [(3, 1.0)]}, ["0", "1"])
        with self.assertRaisesRegex(SliceError, "MIG instance MIG-1"):
            read({"GPU": [(0, 1.0)]}, ["MIG-1"])
        with self.assertRaisesRegex(SliceError, "0.5 of GPU 0, 1 of GPU 1"):
            read({"GPU": [(0, 0.5), (1, 1.0)]}, None)

    def test_the_users_amount_has_to_be_rays(self) -> None:
        check(Assignment(("0",), 250), Settings())
        check(Assignment(("0",), 250), Settings(gpu=0.25))
        check(Assignment(("0", "1"), 1000), Settings(gpu=2))
        check(Assignment(("0",), 333), Settings(gpu=0.3333))
        with self.assertRaisesRegex(SliceError, "num_gpus=0.25, but the runtime_env has divvy.gpu=0.5"):
            check(Assignment(("0",), 250), Settings(gpu=0.5))


class Asked(unittest.TestCase):
    def test_the_words_name_gpu_amount_and_this_process(self) -> None:
        base = ["/bin/divvy", "slice", "create", "ray-x"]
        end = ["--pid", str(os.getpid()), "--cancel-on-exit"]
        asked = words(Assignment(("1",), 250), Settings(divvy="/bin/divvy"), "ray-x")
        self.assertEqual(asked, [*base, "--gpus-on", "1", "-g", "0.25", *end])
        settings = Settings(divvy="/bin/divvy", gpu_memory="8G", compute="strict")
        asked = words(Assignment(("0", "1"), 1000), settings, "ray-x")
        self.assertEqual(asked, [*base, "--gpus-on", "0,1", "--gpu-memory", "8G", "--compute", "strict", *end])

    def test_names_fit_divvys_rules(self) -> None:
        worker = "0123456789abcdef" * 4
        for task, expected in [
            ("Model.__init__", "ray-Model-0123456789abcdef"),
            ("", "ray-0123456789abcdef"),
            ("größe naïve!", "ray-gr-e-na-ve-0123456789abcdef"),
            ("../../x", "ray-0123456789abcdef"),
            ("x" * 100_000, f"ray-{'x' * 24}-0123456789abcdef"),
        ]:
            self.assertEqual(slice_name(task, worker), expected)

    def test_the_error_travels_to_the_caller(self) -> None:
        error = SliceError.of("no room", "wait")
        self.assertEqual(str(pickle.loads(pickle.dumps(error))), "divvy: no room\nhint: wait")
