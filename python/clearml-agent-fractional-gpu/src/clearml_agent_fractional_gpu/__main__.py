"""``clearml-agent-fractional-gpu [GPU…]``: checks whether Divvy can allocate fractions of these GPUs (default: all).

Exits with 1 and the reason if it cannot. Made for ``ExecStartPre=`` in a systemd unit.
"""

import sys
from typing import Optional

from ._divvy import check
from ._errors import FractionError


def main(words: Optional[list[str]] = None) -> int:
    gpus = sys.argv[1:] if words is None else words
    if any(word.startswith("-") for word in gpus):
        print(__doc__)
        return 0 if gpus in (["-h"], ["--help"]) else 2
    try:
        print(check(gpus))
    except FractionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
