"""The clients' half of a federation: what they compute in a round, and what they keep for the next."""
