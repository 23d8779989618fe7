"""What a task adds to Lightning's checkpoints."""
