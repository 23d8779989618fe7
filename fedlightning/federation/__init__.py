"""A federation: the server, its clients, and the transport that carries messages between them."""
