"""Files of checkpoints and client states, which are either complete or absent."""
