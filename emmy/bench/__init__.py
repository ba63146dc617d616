"""Check and time compiled kernels on a CUDA device; `python -m emmy.bench.run` is the way in."""
