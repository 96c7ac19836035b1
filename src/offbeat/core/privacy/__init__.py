"""Privacy: its options, sums of rounded updates, noise, what clients have spent, and what is refused."""
