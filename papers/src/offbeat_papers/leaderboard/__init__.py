"""The leaderboard: every algorithm tuned with the same budget and ranked, from rows of runs alone."""
