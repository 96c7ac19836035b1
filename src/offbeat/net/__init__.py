"""The real server and its sites: the same algorithm object on a network."""
