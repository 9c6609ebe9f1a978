"""Why the validator does not do what it was asked."""


class ValidatorError(Exception):
    """Root of every error `shoal.validator` raises."""


class CheckError(ValidatorError):
    """A check that failed; `fix` says what to do."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(why)
        self.fix = fix


class StartAnewError(ValidatorError):
    """What the runtime brought into this container is not what the node has: a new container gets it."""
