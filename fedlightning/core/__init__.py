"""What every part stands on: parameters by name, trees of tensors, seeds, checks, plain configurations."""
