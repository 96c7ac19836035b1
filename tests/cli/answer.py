"""The answer of a command, as its tests read it."""

from typing import NamedTuple


class Answer(NamedTuple):
    """Exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str

    def complaint(self, code: int = 2) -> str:
        """Its only line on stderr, of a call that printed nothing else."""
        assert self.code == code, self.err
        assert self.out == ""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("offbeat: ")
        return lines[0]
