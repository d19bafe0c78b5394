"""`python -m bnorm` is the command `bnorm`."""

from bnorm.app.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
