"""`python -m runtime COMMAND`: the same as `tenure COMMAND`."""

from __future__ import annotations

import sys

from runtime.cli import main

if __name__ == "__main__":
    sys.exit(main())
