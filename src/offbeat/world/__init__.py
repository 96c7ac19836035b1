"""The world of the clients: speeds, networks, availability, and the partition of data over them."""
