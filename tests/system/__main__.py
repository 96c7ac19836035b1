"""Run one seed, or a range of seeds, of the simulated system: python -m tests.system 17 [18]."""

import sys
import time

from tests.system.federation import FailedError, simulate


def say(*lines: str) -> None:
    """Write lines to the standard output."""
    sys.stdout.writelines(f"{line}\n" for line in lines)


def main(first: int, end: int) -> int:
    """Run the seeds; returns the number of those that failed. What happened in a single one is printed."""
    failed = 0
    for seed in range(first, end):
        began = time.process_time()
        try:
            found = simulate(seed, keep=end == first + 1)
        except FailedError as error:
            failed += 1
            say(*error.lines, str(error))
        else:
            took = time.process_time() - began
            say(*found.lines, f"seed {seed} ({found.name}): {found.digest.hexdigest()[:16]}, {took:.2f} s")
    return failed


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sys.exit(main(given[0], given[-1] + (len(given) == 1)) > 0)
