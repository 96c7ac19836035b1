"""The wire format: frames, messages and their bodies, read and written without sockets."""
