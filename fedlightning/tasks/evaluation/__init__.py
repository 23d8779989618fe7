"""Clients' own models, in a task or at their nodes, and what is measured of them."""
