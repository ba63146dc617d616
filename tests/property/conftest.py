"""Lets the tests of this folder import its `*_support` modules."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
