"""Fast paths of local training: the batched module, plain SGD in one pass."""
