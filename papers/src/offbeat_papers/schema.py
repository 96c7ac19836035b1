"""The columns of the dataset: name, type, unit and meaning of each."""

from dataclasses import dataclass
from typing import Literal

FieldType = Literal["string", "integer", "number", "boolean", "object", "list"]
"""Types by their names in a Data Package; a list is numbers with blanks between in a CSV file."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column.

    Attributes:
        name: Its name.
        type: Its type; an object is JSON in a CSV file.
        meaning: What it is.
        unit: Its unit. None means that it has none.
    """

    name: str
    type: FieldType
    meaning: str
    unit: str | None = None

    def described(self) -> dict[str, str]:
        """The description of a field in a Data Package."""
        named = {"name": self.name, "type": self.type, "description": self.meaning}
        if self.type == "list":
            named |= {"delimiter": " ", "itemType": "number"}
        return named if self.unit is None else {**named, "unit": self.unit}


_SPENT = "seconds, versions, tasks that arrived, bytes up and down"

ROW_FIELDS = (
    Field("study", "string", "the study, PAPER/STUDY; of tuning it ends with -tuning"),
    Field("size", "string", "how large the run is: paper, laptop or seconds"),
    Field("column", "string", "the setting: a column of the study's table"),
    Field("label", "string", "the algorithm with its options, as the study names it"),
    Field("seed", "integer", "seed of all randomness of the run"),
    Field("digest", "string", "digest of all that determines the run's numbers; it names the run"),
    Field("version", "string", "version of Offbeat"),
    Field("commit", "string", "commit of the checkout; -dirty: with changes; unknown: outside of a checkout"),
    Field("machine", "string", "kind of processor and of GPU, number of cores, version of PyTorch"),
    Field("seconds", "number", "virtual time of the run", "s"),
    Field("processor", "number", "processor time that it took; null: it was interrupted and resumed", "s"),
    Field("versions", "integer", "versions of the global model that were made"),
    Field("tasks", "integer", "updates that arrived"),
    Field("bytes_up", "integer", "sent by clients", "B"),
    Field("bytes_down", "integer", "sent to clients", "B"),
    Field("ended", "string", "why the run ended: a limit, or that its training has diverged"),
    Field("spent", "object", f"by metric, what the last evaluation came after: {_SPENT}"),
    Field("best", "object", "by metric, its best value; shares are in [0, 1]"),
    Field("final", "object", "by metric, its value at the last evaluation"),
    Field("level", "object", "by metric, its mean over the last fifth of the time"),
    Field("change", "object", "by metric, its mean absolute change from one evaluation to the next there"),
    Field("reached", "object", f"by metric and target, what the first evaluation there came after: {_SPENT}; "
          "null: the target was not reached"),
)  # fmt: skip
"""The columns of a row, as the CSV files have them."""
DERIVED_FIELDS = (
    Field("commit_state", "string", "clean: the commit can be checked out; dirty: the checkout had changes; "
          "missing: the repository does not have the commit; unknown: made outside of a checkout"),
    Field("processor_name", "string", "kind of processor: runs of different kinds are not paired"),
)  # fmt: skip
"""The columns that a Parquet file has beside them, which follow from the others."""
CURVE_FIELDS = (
    Field("digest", "string", "digest of the run"),
    Field("metric", "string", "name of the metric"),
    Field("seconds", "list", "virtual times of evaluations, at most sixty", "s"),
    Field("values", "list", "values of the metric there"),
)
"""The columns of a curve."""
CLAIM_FIELDS = (
    Field("paper", "string", "the paper"),
    Field("experiment", "string", "the first of the paper's experiments that the claim is about"),
    Field("item", "string", "the table or figure of a study"),
    Field("size", "string", "how large its runs are: paper, laptop or seconds"),
    Field("number", "integer", "number of the claim in its item, from 1"),
    Field("explains", "boolean", "whether the claim is ours and about a cause; no experiment needs it"),
    Field("claim", "string", "the claim"),
    Field("quote", "string", "the paper's words; empty: none"),
    Field("by", "string", "what is compared: a cost up to the target, a value, or another metric"),
    Field("question", "string", "the pairs that the claim is about: their average, every, most or some"),
    Field("margin", "number", "least lead: a share of a cost, else in the metric's unit"),
    Field("pairs", "integer", "pairs of arms that it compares"),
    Field("seeds", "integer", "seeds of the last look; 0: there was none"),
    Field("least_p_at", "integer", "seeds of the look with the least p-value; empty: not held nor refuted"),
    Field("effect", "number", "mean over the pairs: the ratio of the other's cost to the claimed one's, "
          "or the difference of values; shares are in [0, 1]"),
    Field("low", "number", "lower end of its 95 % interval by Welch's t"),
    Field("high", "number", "upper end of it"),
    Field("paper_effect", "number", "median of the paper's effects; empty: never, or not given"),
    Field("on_average", "string", "the verdict if the claim spoke of the mean over pairs"),
    Field("every_pair", "string", "the verdict if it spoke of every pair"),
    Field("verdict", "string", "the verdict on what it says"),
    Field("reached", "string", "of a cost: how many runs of each label reached the target"),
    Field("runs", "integer", "its runs, at the seeds of the last look"),
    Field("early_runs", "integer", "of these, how many are from before the rule was frozen"),
    Field("uncommitted_runs", "integer", "of these, how many are from commits that cannot be checked out"),
)  # fmt: skip
"""The columns of the table of claims."""
