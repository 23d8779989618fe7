"""Foundations that all parts share: parameters by name, trees of tensors, seeds, checks, plain configurations."""
