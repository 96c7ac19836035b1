"""The client of a deployed run: connection, worker, pending updates."""
