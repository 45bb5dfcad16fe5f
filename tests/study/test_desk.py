"""An agent's dealings with the store, without trainers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tempopt.store.rows import Checkpoint, TicketRow
from tempopt.store.store import Store
from tempopt.study.desk import Desk
from tempopt.study.progress import Unobserved
from tempopt.study.spec import StudySpec
from tempopt.study.stages import first_tickets
from tempopt.study.trials import make_study
from tests.study.toy_study import URL, toy_spec, work_in


def test_checkpoints_that_the_store_still_names_are_not_deleted_by_whoever_lost_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_in(tmp_path, monkeypatch)
    abandoned: list[int] = []
    spec = StudySpec.parse(toy_spec(lease=60), source="the test")
    with Store.open(URL) as store:
        study = store.create_study("toy", spec.to_json(), spec.identity())
        make_study(store.url, name="toy", direction="minimize", metric="val_loss")
        store.add_tickets(study.id, first_tickets(spec))
        desk = Desk(
            spec=spec,
            study=study,
            store=store,
            folder=tmp_path,
            trainers=1,
            abandon=abandoned.extend,
            observer=Unobserved(),
        )
        ticket = desk.next_ticket([])
        assert ticket is not None and ticket.kind == "unit"
        folder = tmp_path / "toy" / "unit-0000"
        folder.mkdir(parents=True)

        def keep(step: int, row: TicketRow) -> TicketRow:
            path = folder / f"step-{step}-1.ckpt"
            path.write_bytes(b"x")
            return desk.keep(row, Checkpoint(step=step, url=str(path), digest="d", size=1), age=0.0)

        ticket = keep(1, keep(0, ticket))
        desk._deliver()
        ticket = keep(3, keep(2, ticket))
        # frozen now, past the lease: another takes the run over
        store.write(study.id, [], agent=desk._name, renew={ticket.id: 1}, lease=-1.0)
        other = store.take_ticket(study.id, "another", {"unit": 0}, lease=60.0, max_attempts=3)
        assert other is not None and other.id == ticket.id
        desk._deliver()
        assert abandoned == [ticket.id]
        named = [each.url for each in store.tickets(study.id)[0].checkpoints]
        assert len(named) == 2 and all(Path(url).is_file() for url in named)
