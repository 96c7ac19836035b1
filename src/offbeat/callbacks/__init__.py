"""Callbacks of a run, and the trackers built on them."""
