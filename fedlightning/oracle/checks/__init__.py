"""Comparisons of fast oracles with plain evaluation, number by number."""
