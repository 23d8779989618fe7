"""What a fit does around its rounds: the run, the server's step, the report."""
