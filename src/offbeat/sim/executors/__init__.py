"""Executors: where local training is computed."""
