"""Who takes part in a round, and which samples each of these clients works on."""
