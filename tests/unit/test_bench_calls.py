"""What `emmy.bench.calls` says where it cannot measure; figures need a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from emmy.bench import calls


def test_without_pytorch_the_error_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert calls.main([str(tmp_path), "--entry", "matmul"]) == 1
    assert capsys.readouterr().err == "error: calls are timed with PyTorch tensors, and this Python has no PyTorch\n"


def test_the_first_call_of_a_process_is_a_program():
    text = calls.FIRST_CALL.format(shapes=[(2, 3)], path="folder", entry="mm")
    compile(text, "first call", "exec")
    assert "getattr(emmy.load('folder'), 'mm')" in text
