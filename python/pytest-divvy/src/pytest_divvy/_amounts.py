"""Amounts of memory: reading, rounding, showing."""

import re

MIB = 1 << 20
GIB = 1 << 30

_UNITS = {"K": 1 << 10, "M": MIB, "G": GIB, "T": 1 << 40}

#: Divvy gives memory in steps of 2 MiB.
STEP = 2 * MIB

#: Room above a measured peak, as `divvy advise` gives it: a tenth, but at least 256 MiB, in steps of 256 MiB.
_MARGIN = 256 * MIB


class AmountError(ValueError):
    """A text is no amount of memory."""


def parse(text: object) -> int:
    """The bytes of ``6G``, ``512MiB`` or ``1.5G``; units are powers of 1024, as everywhere in Divvy.

    :raises AmountError: for a number without a unit, and for anything else.
    """
    found = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([KMGT])(?:i?B|i)?\s*", str(text))
    if found is None:
        raise AmountError(f"{text!r} is no amount of memory; write one as '6G' or '512M'")
    number = round(float(found[1]) * _UNITS[found[2]])
    if number < MIB:
        raise AmountError(f"{text!r} is less than 1 MiB")
    return number // MIB * MIB


def up(number: int, step: int) -> int:
    """The next multiple of `step`."""
    return -(-number // step) * step


def down(number: int, step: int) -> int:
    return number // step * step


def with_margin(peak: int) -> int:
    """The size that a test with this peak gets."""
    return up(peak + max(peak // 10, _MARGIN), _MARGIN)


def shown(number: int) -> str:
    """``5.9 GiB``, or ``415 MiB`` below one."""
    if number >= GIB:
        return f"{number / GIB:.1f} GiB"
    return f"{number / MIB:.0f} MiB"
