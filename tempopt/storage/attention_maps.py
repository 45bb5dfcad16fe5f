"""The form of the attention maps of a run, as they are stored; the data themselves stay plain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Base64Bytes, BaseModel, Field, FiniteFloat, model_validator

from tempopt.storage.rows import BoundedText, ShortText, Step, TicketId, has_form

_Index = Annotated[int, Field(ge=0, lt=2**31, strict=True)]
_Side = Annotated[int, Field(ge=1, le=1024, strict=True)]


class _Head(BaseModel, extra="forbid"):
    layer: _Index
    head: _Index
    queries: _Index
    keys: _Index
    rows: _Side
    columns: _Side
    max_weight: Annotated[FiniteFloat, Field(alias="most")]
    cells: Base64Bytes

    @model_validator(mode="after")
    def _check_size(self) -> _Head:
        if len(self.cells) != self.rows * self.columns:
            raise ValueError("the cells are not rows times columns")
        return self


class _Measure(BaseModel, extra="forbid"):
    layer: _Index
    head: _Index
    measure: ShortText
    score: FiniteFloat
    low: FiniteFloat
    high: FiniteFloat
    value: FiniteFloat
    chance: FiniteFloat


class _Moment(BaseModel, extra="forbid"):
    step: Step
    heads: Annotated[list[_Head], Field(max_length=10_000)]
    measures: Annotated[list[_Measure], Field(max_length=10_000)]


class _Maps(BaseModel, extra="forbid"):
    moments: Annotated[dict[Literal["start", "middle", "end"], _Moment], Field(min_length=1)]
    notes: Annotated[list[BoundedText], Field(max_length=100)]


MapsData = Annotated[dict[str, Any], has_form(_Maps)]
"""The attention maps of a run as plain data: the output of ``training.attention_maps``, validated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapsRow:
    """The attention maps of one ticket."""

    ticket_id: TicketId
    maps: MapsData
