"""A run in a notebook: figure, table, data frames."""
