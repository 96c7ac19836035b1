"""The errors Offbeat raises on purpose, and what each means to whoever called."""


class OffbeatError(Exception):
    """Base of every error raised on purpose; its text is one clear line."""


class UsageError(OffbeatError, ValueError):
    """What was asked cannot be done as asked: names the option, its value and what is allowed.

    The command line prints it without a traceback and exits with code 2.
    """


class RunError(OffbeatError, RuntimeError):
    """A run that was asked correctly failed; the command line exits with code 1."""


class AlgorithmError(OffbeatError, RuntimeError):
    """An algorithm broke the rules of the state machine, such as training a busy client."""
