"""What a person runs: the command `bnorm`."""
