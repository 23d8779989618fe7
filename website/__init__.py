"""Pages of the documentation site that are generated from the repository: algorithms, configs, results."""
