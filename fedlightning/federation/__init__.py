"""The middle of the library: a server, its clients, and what carries their messages."""
