"""The source text and its language model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lightning as L
import pytest
import torch

from lightning_modules.source_data import draw_windows, read_sources
from lightning_modules.source_lm import SourceData, SourceLM
from tempopt import SpecError

Fit = Callable[..., L.Trainer]


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A folder of 60 files, each of which says its own name, and some that are to be left out."""
    for number in range(60):
        path = tmp_path / f"package_{number % 3}" / f"module_{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"<module_{number}>" * 40)
    for folder in ("site-packages", "test"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "module.py").write_text("<left_out>" * 1000)
    (tmp_path / "notes.txt").write_text("<left_out>" * 1000)
    return tmp_path


def names(text: torch.Tensor) -> set[str]:
    parts = bytes(text.tolist()).decode().split(">")
    return {part.removeprefix("<") for part in parts if part.startswith("<module_")}


def test_no_file_is_in_two_splits_and_other_files_are_in_none(sources: Path) -> None:
    texts = read_sources(sources, max_bytes=1_000_000)
    names_by_split = {split: names(text) for split, text in texts.items()}
    assert names_by_split["train"] | names_by_split["val"] | names_by_split["test"] == {
        f"module_{number}" for number in range(60)
    }
    assert sum(map(len, names_by_split.values())) == 60
    assert len(names_by_split["train"]) > 30
    assert b"left_out" not in bytes(torch.cat(list(texts.values())).tolist())


def test_the_text_is_no_longer_than_was_asked(sources: Path) -> None:
    texts = read_sources(sources, max_bytes=5_000)
    assert {split: len(text) for split, text in texts.items()} == {"train": 4000, "val": 500, "test": 500}


def test_a_folder_without_text_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds 0 Python files.*Give data.root a folder"):
        read_sources(tmp_path, max_bytes=1000)


def test_windows_are_slices_of_the_text() -> None:
    text = torch.arange(200, dtype=torch.uint8)
    windows = draw_windows(
        500, text, length=150, masked_fraction=0.15, generator=torch.Generator().manual_seed(0)
    )
    assert (windows.bytes_BN.diff(dim=1) == 1).all()
    assert windows.bytes_BN.min() == 0
    assert windows.bytes_BN.max() == 199
    assert windows.masked_BN.float().mean().item() == pytest.approx(0.15, abs=0.01)


def data(root: Path, **changes: object) -> SourceData:
    options = {"lengths": (16, 32), "num_bytes": 256, "length": 16, "batch_size": 8, "root": str(root)}
    return SourceData(**{**options, **changes})  # type: ignore[arg-type]


def test_test_windows_lie_in_files_of_their_own(sources: Path) -> None:
    split = data(sources)
    split.setup("fit")
    test_windows = []
    for run_seed in (1, 1, 2):
        torch.manual_seed(run_seed)
        (batch,) = split.test_dataloader()[1]
        test_windows.append(batch.bytes_BN)
    assert torch.equal(test_windows[0], test_windows[1])
    assert not torch.equal(test_windows[0], test_windows[2])
    for windows in test_windows[0]:
        assert bytes(windows.tolist()) in bytes(split.texts["test"].tolist())


def test_a_causal_model_does_not_see_what_it_guesses(sources: Path) -> None:
    torch.manual_seed(0)
    module = SourceLM(objective="causal").eval()
    tokens = torch.randint(256, (2, 20))
    changed = tokens.clone()
    changed[:, 12:] = 7
    assert torch.allclose(module(tokens)[:, :12], module(changed)[:, :12], atol=1e-5)


def test_a_masked_model_does_not_see_what_it_guesses_but_both_sides_of_it(sources: Path) -> None:
    torch.manual_seed(0)
    module = SourceLM(objective="masked").eval()
    text = torch.randint(256, (4000,), dtype=torch.uint8)
    windows = draw_windows(4, text, length=20, masked_fraction=0.3)
    hidden = windows._replace(bytes_BN=windows.bytes_BN.masked_fill(windows.masked_BN, 0))
    assert torch.equal(module._guesses(windows)[0], module._guesses(hidden)[0])
    assert torch.equal(module._guesses(windows)[1], windows.bytes_BN[windows.masked_BN])
    later = torch.randint(256, (1, 20))
    changed = later.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 256
    assert not torch.allclose(module(later)[:, 0], module(changed)[:, 0], atol=1e-4)


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_it_learns_in_a_plain_trainer(objective: str, sources: Path, fit: Fit) -> None:
    L.seed_everything(0, verbose=False)
    logged = fit(
        SourceLM(objective=objective, d_model=32, num_layers=1), data(sources), steps=60
    ).callback_metrics
    # 8 bits are a guess blind
    assert logged["val_bits"] < 5.0
    assert logged["val_bits"].item() == pytest.approx(
        (logged["val_bits_16"] + logged["val_bits_32"]).item() / 2
    )
    assert 0.0 < logged["val_accuracy"] <= 1.0


def test_an_objective_that_is_not_known_is_refused() -> None:
    with pytest.raises(SpecError, match='Unknown objective "mask"'):
        SourceLM(objective="mask")
