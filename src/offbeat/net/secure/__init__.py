"""Secure aggregation of a deployed run: its helpers, what a server and a site do for it, and what is kept."""
