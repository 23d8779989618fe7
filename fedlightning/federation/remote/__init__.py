"""A federation whose clients live on other machines: what travels, what nodes keep, and what the server checks."""
