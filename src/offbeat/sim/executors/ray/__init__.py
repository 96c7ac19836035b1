"""Training on a Ray cluster. Ray is imported only when it is used."""
