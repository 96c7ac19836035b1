"""A run's model outside of Offbeat: the module with its weights, and files that other programs read."""
