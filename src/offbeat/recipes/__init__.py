"""Experiments as data: YAML recipes, checked and run by name."""
