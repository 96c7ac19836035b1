"""A run's directory: its database, its checkpoints and its final model."""
