"""Watching a run: snapshots, the live page, Prometheus, logs."""
