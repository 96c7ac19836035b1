"""Privacy: its options, sums of rounded updates, noise, the clients' spending, and refusals."""
