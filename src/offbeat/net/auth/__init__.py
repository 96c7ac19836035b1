"""Who may connect: credentials, tokens, TLS files, revocation lists."""
