"""What an objective does beside computing its loss: found, undone, or refused."""
