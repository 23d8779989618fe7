"""Gradients that are recorded as a list of tensor operations once and replayed from then on."""
