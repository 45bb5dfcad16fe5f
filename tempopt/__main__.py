"""``python -m tempopt`` is ``tempopt``."""

from __future__ import annotations

import sys

from tempopt.cli import main

if __name__ == "__main__":
    sys.exit(main())
