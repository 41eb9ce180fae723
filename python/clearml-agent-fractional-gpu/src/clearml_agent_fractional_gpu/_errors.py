"""The error of this package."""


class FractionError(ValueError):
    """A fraction cannot be allocated, with the reason and a hint."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(f"{reason}\nhint: {hint}")
        self.reason = reason
        self.hint = hint
