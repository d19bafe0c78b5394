"""The command `bnorm`."""
