"""Privacy around any algorithm: its updates are pooled into releases, and other algorithms are refused."""
