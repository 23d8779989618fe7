"""Simulated clients that send something else than their updates."""
