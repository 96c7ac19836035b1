"""Copies of a run's directory, made while a server writes it, and put back."""
