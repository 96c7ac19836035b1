"""The order of the columns of several parties' tables: by name, as the first table has them.

| columns                          | what happens                                                    |
|----------------------------------|-----------------------------------------------------------------|
| same names, same order           | nothing                                                         |
| same names, another order        | they are put in the order of the first table                    |
| other names, or fewer, or more   | refused, with the names                                         |
| no names, and as many            | taken by position, which the log tells where others have names  |
| no names, and another number     | refused                                                         |
"""

import logging
from collections.abc import Mapping
from types import MappingProxyType

from offbeat.core.errors import UsageError
from offbeat.data.columns import Columns, listed
from offbeat.data.dataset import Dataset, Samples

log = logging.getLogger(__name__)
NO_COLUMNS: Columns = MappingProxyType({})


def in_one_order(sets: Mapping[str, Samples], columns: Columns = NO_COLUMNS) -> list[Samples]:
    """Collections whose tables have the same columns in the same order, which are matched by their names.

    Columns without names are taken by position, which the log tells where others have names.

    Args:
        sets: The collections, by what each is called in messages.
        columns: The names in the wanted order. Of other parts, the first table with names has it.

    Raises:
        UsageError: A table has other columns.
    """
    first = {name: ("the run's", names) for name, names in columns.items()}
    for whose, samples in sets.items():
        for name, names in samples.columns.items() if isinstance(samples, Dataset) else ():
            first.setdefault(name, (whose, names))
    ordered, unnamed = dict(sets), []
    for whose, samples in sets.items():
        if not isinstance(samples, Dataset) or not len(samples):
            continue
        moved = samples
        for name, (other, names) in first.items():
            try:
                moved = moved.with_columns({name: names})
            except UsageError as error:
                raise UsageError(f"{whose} has other columns than {other}: {error}") from None
        ordered[whose] = moved
        unnamed += [whose] * (len(moved.columns) > len(samples.columns))
    if unnamed:
        log.warning(
            "columns without names are taken by position, as if they were named: %s", listed(unnamed, 3)
        )
    return list(ordered.values())
