"""``python -m tempopt`` is ``tempopt``."""

from __future__ import annotations

import sys

from tempopt.cli import program

if __name__ == "__main__":
    sys.exit(program())
