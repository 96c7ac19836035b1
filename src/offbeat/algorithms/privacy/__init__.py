"""Privacy around any algorithm: its updates are pooled into releases, and what cannot be is refused."""
