"""The simulator: a virtual clock, an event queue, and executors that do the training."""
