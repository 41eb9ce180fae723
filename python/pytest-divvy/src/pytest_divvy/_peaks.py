"""The file of peaks: how much GPU memory each test needs, in lines that people read and merge.

```text
# peaks of pytest-divvy, in MiB: peak, growth, test
  1408    960 tests/test_model.py::test_step[fp16]
     0      0 tests/test_words.py
```
The peak is the most that the worker's slice held during the test, its context included. The growth is what the test added
to what the worker held before. A line without `::` stands for all tests of a file
without any use of a GPU.
"""

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Optional

from ._amounts import MIB, up

HEAD = "# peaks of pytest-divvy, in MiB: peak, growth, test"

#: The most tests in a file. The largest suites of GPU programs have some ten thousands; a file of this size has 20 MB.
MOST_TESTS = 200_000

#: The longest id of a test that is kept. Ids of parameters have at most some hundred letters; a longer one is measured anew
#: in each run.
MOST_LETTERS = 1000

#: Peaks are kept in steps of this size, so that small differences between two runs change no line.
STEP = 64 * MIB

_LINE = re.compile(r"\s*(\d{1,9})\s+(\d{1,9})\s(\S.*)")


class PeaksError(ValueError):
    """A file is not one of peaks."""


@dataclass(frozen=True)
class Need:
    """The memory of a test, in bytes."""

    peak: int
    growth: int

    def rounded(self) -> "Need":
        return Need(up(self.peak, STEP), up(self.growth, STEP))

    def over(self, other: "Optional[Need]") -> "Need":
        return self if other is None else Need(max(self.peak, other.peak), max(self.growth, other.growth))


NOTHING = Need(0, 0)


class Peaks:
    """The needs of tests by id."""

    def __init__(self, needs: Optional[dict[str, Need]] = None) -> None:
        self.needs: dict[str, Need] = dict(needs or {})

    def of(self, test: str) -> Optional[Need]:
        """The need of this test; `None` if it was never measured."""
        return self.needs.get(test) or self.needs.get(file_of(test))

    def note(self, test: str, need: Need, passed: bool) -> None:
        """Notes what a test needed. Values only grow.

        A test that failed may have ended before its peak, so it only raises a known value.
        """
        known = self.of(test)
        if not is_kept(test) or (known is None and not passed) or known == need == NOTHING:
            return
        if test not in self.needs and len(self.needs) >= MOST_TESTS:
            return
        self.needs[test] = need.rounded().over(known)

    def text(self) -> str:
        """The file: one line a test, in the order of their ids."""
        lines = [f"{need.peak // MIB:6} {need.growth // MIB:6} {test}" for test, need in self._folded()]
        return "\n".join([HEAD, *lines, ""])

    def _folded(self) -> list[tuple[str, Need]]:
        """Files without any use of a GPU in one line each."""
        busy = {file_of(test) for test, need in self.needs.items() if need != NOTHING}
        folded = {
            (file_of(test) if need == NOTHING and file_of(test) not in busy else test): need
            for test, need in self.needs.items()
            # A file's own line goes once one of its tests uses a GPU.
            if "::" in test or test not in busy
        }
        return sorted(folded.items())


def file_of(test: str) -> str:
    return test.split("::", 1)[0]


def is_kept(test: str) -> bool:
    return len(test) <= MOST_LETTERS and test.isprintable() and test == test.strip()


def parse(text: str) -> Peaks:
    """Reads a file.

    :raises PeaksError: with the number of the first line that is none of it.
    """
    needs: dict[str, Need] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise PeaksError(f"line {number} has no peak, growth and test: {line[:80]!r}")
        if len(needs) >= MOST_TESTS:
            raise PeaksError(f"line {number}: more than {MOST_TESTS} tests")
        need = Need(int(found[1]) * MIB, int(found[2]) * MIB)
        # A merge of two branches may leave both lines of a test.
        needs[found[3]] = need.over(needs.get(found[3]))
    return Peaks(needs)


def read(file: Path) -> Peaks:
    """Reads a file; without one, nothing is known.

    :raises PeaksError: with the file, and what is wrong with it.
    """
    try:
        return parse(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Peaks()
    except (OSError, UnicodeError, PeaksError) as error:
        raise PeaksError(f"{file}: {error}") from None


def write(file: Path, peaks: Peaks) -> bool:
    """Writes a file in one step, if it differs; whether it did."""
    text = peaks.text()
    try:
        if file.read_text(encoding="utf-8") == text:
            return False
    except (OSError, UnicodeError):
        pass
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=file.name, dir=file.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(text)
        # As `open` would have made it; `mkstemp` is for secrets.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise
    return True


def changed(before: Peaks, after: Peaks) -> int:
    """The number of lines that differ."""
    tests: Iterable[str] = before.needs.keys() | after.needs.keys()
    return sum(before.of(test) != after.of(test) for test in tests)
