"""Secure aggregation of a deployed run: its helpers, the parts of server and site, and records."""
