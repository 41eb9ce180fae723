"""The error of this package."""


class SliceError(RuntimeError):
    """A task gets no slice, or Ray's request has no meaning for Divvy. The text has the reason and a hint.

    Ray pickles it from the worker to the caller, so it has one argument.
    """

    @classmethod
    def of(cls, reason: str, hint: str = "") -> "SliceError":
        return cls(f"divvy: {reason}\nhint: {hint}" if hint else f"divvy: {reason}")
