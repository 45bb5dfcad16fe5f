"""The log of a command keeps its beginning and its end, and no more."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tempopt.program.output import KEPT_BYTES, CappedLog


@given(st.lists(st.integers(1, 300_000), min_size=1, max_size=60))
@settings(max_examples=15)
def test_a_log_keeps_its_beginning_and_its_end(sizes: list[int]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.txt"
        path.write_bytes(b"an earlier attempt\n")
        log, output = CappedLog(path), b""
        for number, size in enumerate(sizes):
            piece = (str(number % 10) * size).encode()
            output += piece
            log.write(piece)
        log.close()
        text = path.read_bytes()
    assert text.startswith(b"an earlier attempt\n" + output[:KEPT_BYTES])
    assert text.endswith(output[-min(len(output), KEPT_BYTES) :])
    assert len(text) < 3 * KEPT_BYTES + 1000
    assert (b"left out" in text) == (len(output) > 3 * KEPT_BYTES)
    assert log.lost == ""


def test_a_log_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    log = CappedLog(tmp_path / "missing" / "log.txt")
    log.write(b"text")
    log.close()
    assert "No such file" in log.lost
