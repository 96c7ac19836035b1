"""Authentication: credentials, tokens, TLS files, revocation lists."""
