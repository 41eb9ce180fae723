import tempfile
import unittest
from pathlib import Path

from pytest_divvy import _peaks
from pytest_divvy._amounts import GIB, MIB, AmountError, parse, shown, with_margin
from pytest_divvy._peaks import NOTHING, Need, Peaks, PeaksError

BIG = Need(1408 * MIB, 960 * MIB)


class Amounts(unittest.TestCase):
    def test_amounts_are_those_of_the_command_line(self) -> None:
        for text, bytes_ in (("6G", 6 * GIB), ("512M", 512 * MIB), ("1.1G", 1126 * MIB), ("2GiB", 2 * GIB), (" 1Ti ", 1 << 40)):
            self.assertEqual(parse(text), bytes_, text)
        for text in ("6", 6, "G", "-1G", "6 g", "0M", "1K", "1e3G", "9999999999G", None, "६G"):
            if text == "६G":
                self.assertEqual(parse(text), 6 * GIB)
                continue
            with self.assertRaises(AmountError, msg=text):
                parse(text)

    def test_a_size_has_the_margin_of_advise(self) -> None:
        self.assertEqual(with_margin(100 * MIB), 512 * MIB)
        self.assertEqual(with_margin(10 * GIB), 11 * GIB)
        self.assertEqual([shown(415 * MIB), shown(6 * GIB)], ["415 MiB", "6.0 GiB"])


class Files(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = Path(folder.name) / "of/peaks.txt"

    def test_a_file_of_peaks_is_sorted_and_says_the_same_after_a_round(self) -> None:
        peaks = Peaks({"b.py::two": BIG, "a.py::one[x y]": BIG, "b.py::cpu": NOTHING})
        self.assertTrue(_peaks.write(self.file, peaks))
        lines = self.file.read_text().splitlines()
        self.assertEqual(lines[0], _peaks.HEAD)
        self.assertEqual(lines[1:], ["  1408    960 a.py::one[x y]", "     0      0 b.py::cpu", "  1408    960 b.py::two"])
        self.assertEqual(_peaks.read(self.file).needs, peaks.needs)
        self.assertFalse(_peaks.write(self.file, _peaks.read(self.file)))
        self.assertEqual([file.name for file in self.file.parent.iterdir()], ["peaks.txt"])

    def test_a_file_without_any_use_of_a_gpu_is_one_line(self) -> None:
        peaks = Peaks({f"words.py::{number}": NOTHING for number in range(5)})
        self.assertEqual(peaks.text().splitlines()[1:], ["     0      0 words.py"])
        known = _peaks.parse(peaks.text())
        self.assertEqual(known.of("words.py::new"), NOTHING)
        # Once one of its tests uses a GPU, each has its own line, and the others are measured again.
        known.note("words.py::new", BIG, passed=True)
        self.assertEqual(known.text().splitlines()[1:], ["  1408    960 words.py::new"])

    def test_peaks_only_grow_and_a_failed_test_adds_no_line(self) -> None:
        peaks = Peaks()
        peaks.note("a.py::one", BIG, passed=False)
        self.assertIsNone(peaks.of("a.py::one"))
        peaks.note("a.py::one", Need(MIB, MIB), passed=True)
        self.assertEqual(peaks.of("a.py::one"), Need(64 * MIB, 64 * MIB))
        peaks.note("a.py::one", BIG, passed=False)
        peaks.note("a.py::one", NOTHING, passed=True)
        self.assertEqual(peaks.of("a.py::one"), BIG)

    def test_both_lines_of_a_merge_count_and_a_conflict_is_named_with_its_line(self) -> None:
        both = _peaks.parse("  64   64 a.py::one\n 128    0 a.py::one\n")
        self.assertEqual(both.of("a.py::one"), Need(128 * MIB, 64 * MIB))
        self.file.parent.mkdir()
        for text in ("<<<<<<< HEAD\n", "64 a.py::one\n", "64 64\n", "-1 0 a.py\n", "64 64 \t\n"):
            self.file.write_text("# a comment\n\n" + text)
            with self.assertRaises(PeaksError, msg=text) as raised:
                _peaks.read(self.file)
            self.assertIn(f"{self.file}: line 3", str(raised.exception))
        self.file.write_bytes(b"\xff\n")
        with self.assertRaises(PeaksError):
            _peaks.read(self.file)
        self.assertEqual(_peaks.read(self.file.with_name("none")).needs, {})

    def test_a_file_of_peaks_is_bounded(self) -> None:
        most = _peaks.MOST_TESTS
        lines = "\n".join(f"64 64 a.py::{number}" for number in range(most))
        full = _peaks.parse(lines)
        full.note("a.py::more", BIG, passed=True)
        self.assertEqual(len(full.needs), most)
        full.note("a.py::1", BIG, passed=True)
        self.assertEqual(full.of("a.py::1"), BIG)
        with self.assertRaises(PeaksError):
            _peaks.parse(lines + "\n64 64 a.py::more")
        for test in ("a.py::" + "x" * _peaks.MOST_LETTERS, "a.py::x\ny", "a.py::x "):
            full.note(test, BIG, passed=True)
            self.assertIsNone(Peaks(full.needs).of(test.replace("a.py", "b.py")))
        self.assertEqual(len(full.needs), most)


if __name__ == "__main__":
    unittest.main()
