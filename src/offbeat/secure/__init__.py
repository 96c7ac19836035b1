"""Secure aggregation: the server learns sums of masked updates; helpers hold the seeds of the masks."""
