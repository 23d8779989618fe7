"""Both ends of a channel, through which updates and broadcasts pass."""
