"""Errors that Offbeat raises on purpose, and their meaning for the caller."""


class OffbeatError(Exception):
    """Base of every error raised on purpose; its text is one clear line."""


class UsageError(OffbeatError, ValueError):
    """A request that cannot be carried out; names the option, its value and what is allowed.

    The command line prints it without a traceback and exits with code 2.
    """


class RunError(OffbeatError, RuntimeError):
    """Failure of a valid run; the command line exits with code 1."""


class DivergedError(RunError):
    """Training that has diverged: an update or a loss is not finite, or the guard has ended the run."""


def has_diverged(stop_reason: str | None) -> bool:
    """Whether a run has ended because its training diverged, by the words of the guard's reason."""
    return "has diverged" in (stop_reason or "")


class DamageError(RunError):
    """A file of a run, a server or a site that cannot be read, or is not as it was written.

    Args:
        path: The file.
        problem: What is wrong with it, as a predicate: "is missing".
        lost: What is lost with it, as a noun phrase.
        remedy: What to do, in the imperative.
    """

    def __init__(self, path: object, problem: str, lost: str, remedy: str) -> None:
        super().__init__(f"{path} {problem}; lost: {lost}; {remedy}")
        self.path, self.problem, self.lost, self.remedy = path, problem, lost, remedy


_OUT_OF_MEMORY = (
    "can't allocate memory", "not enough memory", "out of memory", "std::bad_alloc",
    "Storage size calculation overflowed",
)  # fmt: skip


def is_out_of_memory(error: Exception) -> bool:
    """Whether something did not fit in memory: PyTorch raises a plain `RuntimeError` and says so."""
    told = isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)
    return isinstance(error, MemoryError) or told


def reason_of(error: Exception) -> str:
    """Why a file or a connection cannot be used, without the number that Python puts before the reason."""
    if isinstance(error, FileExistsError):
        # A directory that is to be made may exist, so what is in the way is a file.
        return "a file has this name"
    cause = getattr(error, "reason", None)
    if isinstance(cause, OSError):
        # `URLError` wraps the error of the connection.
        return reason_of(cause)
    return getattr(error, "strerror", None) or str(error)


class AlgorithmError(OffbeatError, RuntimeError):
    """Violation of the state machine's rules by an algorithm, such as training a busy client."""
