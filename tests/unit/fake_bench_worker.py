"""A worker for tests of the benchmark runner: no GPU, and cases that go wrong on demand, by their names."""

import os
import sys
import time

from emmy.bench.worker import serve
from emmy.errors import EmmyError


class FakeWorker:
    def __init__(self):
        if "--no-device" in sys.argv:
            raise RuntimeError("no device here")
        print("a library's chatter on standard output")

    def device(self, request):
        return {"ok": True, "card": "fake"}

    def bracket(self, request):
        return {"ok": True, "cublas_4096_tflops": 700.0, "copy_tb_per_s": 4.2, "clocks": "1980 MHz, 600 W"}

    def case(self, request):
        name = request["case"]["name"]
        if name == "crashes":
            print("last words", file=sys.stderr, flush=True)
            os.abort()
        if name == "hangs":
            time.sleep(600)
        if name == "raises":
            raise RuntimeError("an illegal memory access was encountered")
        if name == "refuses":
            raise EmmyError("argument 'b' has shape (1,); expected (2,)")
        return {"ok": name != "wrong", "us": 10.0, "peer_us": 6.0, "ratio": 0.6, "tflops": 1.0, "pid": os.getpid()}


if __name__ == "__main__":
    raise SystemExit(serve(FakeWorker))
