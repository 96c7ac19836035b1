"""The server of a deployed run: coordinator, message handlers, durable store, service."""
