"""What a task refuses or warns of: when it is made, when a fit begins, and at hooks that Lightning calls."""
