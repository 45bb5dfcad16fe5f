"""The callback with which any Trainer, LightningCLI's too, divides outputs of projections by a temperature.

It needs no study, service or database. What is multiplied where is decided in
``tempopt.attention.attach.rows``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import lightning as L

from tempopt.attention.attach.checkpoints import put_rows_beside
from tempopt.attention.attach.rows import RowsAttachment, attach_rows
from tempopt.attention.attach.scalings import Scaling, rows_scalings
from tempopt.training.weights_callback import WeightsCallback


class RowsCallback(WeightsCallback):
    """Divide outputs of projections by a temperature that follows a schedule over the steps of training.

    The projections are router gates, classifier heads or others that make logits; :func:`tempopt.attach_rows`
    says which. The temperature is set before each training batch, from the step alone, so that a resumed
    training is exact. At temperature 1 training is bit for bit what it is without the callback. Give one
    callback for each temperature. By its class path ``tempopt.RowsCallback`` LightningCLI takes it, too.

    Its checkpoints have the temperature of evaluation in their weights, as :func:`tempopt.bake` writes it:
    ``load_from_checkpoint`` gives the model that was validated, and needs no tempopt. The weights as they
    were trained are beside it, from which a ``Trainer`` with this callback resumes. Where the checkpoint does
    not hold the projections whole, as with weights that are dealt among ranks, the temperature is beside
    them, and :func:`tempopt.load_checkpoint` writes it into the weights.

    The module is attached to before its ``setup``, so projections that ``setup`` or ``configure_model`` make
    are not found. It is not tested that training reads the temperature; ``tempopt check --dry-run`` and
    :meth:`tempopt.RowsAttachment.self_test` do that.

    Args:
        rows: Names of projections, or patterns of them, as for :func:`tempopt.attach_rows`.
        parameters: The schedule, as temperature parameters by name; ``temperature_init`` and
            ``warmup_start`` that are left out are 1.
        validate_at: ``final``: validation, testing and prediction run at the schedule's last temperature, and
            checkpoints hold it; ``current``: at that which training has reached.
        at_inference: Another temperature for ``validate``, ``test`` and ``predict`` of the Trainer and for
            its checkpoints; None for the same.

    Attributes:
        attachment: What is attached; None before the first ``fit``, ``validate``, ``test`` or ``predict``.

    Raises:
        AttachError: A pattern matches no projection, or one has a temperature already, in its weights for
            instance, or parameters that are shared, computed or quantised.
        SpecError: A parameter is out of range.
    """

    attachment: RowsAttachment | None

    def __init__(
        self,
        rows: list[str] | str,
        parameters: dict[str, Any],
        validate_at: Literal["final", "current"] = "final",
        at_inference: float | None = None,
    ) -> None:
        evaluated = None if at_inference is None else {"temperature_init": at_inference}
        super().__init__(parameters, validate_at=validate_at, at_inference=evaluated)
        self.rows = rows
        self.at_inference = at_inference

    @property
    def state_key(self) -> str:
        """What tells this callback from one for other projections."""
        return self._generate_state_key(rows=self.rows)

    def _attach(self, module: L.LightningModule) -> RowsAttachment:
        return attach_rows(module, self.rows, self.parameters)

    def _scalings(self, module: L.LightningModule) -> Sequence[Scaling]:
        assert self.attachment is not None
        return rows_scalings(module, self.attachment.layers, at="final")

    def _put_beside(self, checkpoint: dict[str, Any], temperatures: Mapping[str, float]) -> None:
        put_rows_beside(checkpoint, temperatures)
