"""``python -m fedlightning`` is the command ``fedlightning``."""

from fedlightning.cli import main

if __name__ == "__main__":
    main()
