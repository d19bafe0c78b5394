"""How fast bnorm is beside other libraries on this machine: `python -m benchmarks`. README.md here has the rules."""
