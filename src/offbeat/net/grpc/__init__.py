"""The gRPC transport: the server's end and the client's end."""
