"""What goes wrong."""


class FractionError(ValueError):
    """A fraction cannot be given: the reason, and what to do about it."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(f"{reason}\nhint: {hint}")
        self.reason = reason
        self.hint = hint
