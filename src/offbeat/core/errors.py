"""Errors that Offbeat raises on purpose, and their meaning for the caller."""


class OffbeatError(Exception):
    """Base of every error raised on purpose; its text is one clear line."""


class UsageError(OffbeatError, ValueError):
    """A request that cannot be carried out; names the option, its value and what is allowed.

    The command line prints it without a traceback and exits with code 2.
    """


class RunError(OffbeatError, RuntimeError):
    """Failure of a valid run; the command line exits with code 1."""


class AlgorithmError(OffbeatError, RuntimeError):
    """Violation of the state machine's rules by an algorithm, such as training a busy client."""
