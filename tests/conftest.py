"""Settings for all tests: compilations verify the module after every pass, and Hypothesis repeats itself. The other modules
of this folder are what tests share; all may import them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("EMMY_VERIFY_EACH", "1")
# What is tested is the compiler; tests of the cache switch it on, in folders of their own.
os.environ["EMMY_CACHE"] = "0"

# Timing differs too much between machines for deadlines; examples are the same in every run, so that a failure in CI
# is one that everybody has.
settings.register_profile("emmy", deadline=None, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "emmy"))
