"""One study of Optuna's storage, as Optuna's dashboard sees it: no other one is there."""

from __future__ import annotations

from typing import Any

from optuna.storages import BaseStorage
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial

_OF_STUDY = (
    "get_study_name_from_id",
    "get_study_directions",
    "get_study_user_attrs",
    "get_study_system_attrs",
    "get_n_trials",
    "get_best_trial",
    "get_trial_id_from_study_id_trial_number",
    "set_study_system_attr",
)
_OF_TRIAL = (
    "get_trial",
    "get_trial_params",
    "get_trial_param",
    "get_trial_number_from_id",
    "get_trial_user_attrs",
    "get_trial_system_attrs",
)


class OneStudy:
    """What the dashboard may do with one study: read all of it, and write its attributes, which notes are.

    It stands in the place of a ``BaseStorage``. Every other method, study and trial is missing.

    Args:
        rows: The storage.
        id: The study's id in it.
    """

    def __init__(self, rows: BaseStorage, id: int) -> None:
        self._rows, self._id = rows, id

    def __getattr__(self, name: str) -> Any:
        if name not in _OF_STUDY and name not in _OF_TRIAL:
            raise AttributeError(f"a dashboard of one study has no {name}")
        whole = getattr(self._rows, name)

        def limited(first: int, *more: Any, **named: Any) -> Any:
            known = first == self._id if name in _OF_STUDY else self.has(first)
            if not known:
                raise KeyError(f"{first} is not of this study")
            return whole(first, *more, **named)

        return limited

    def has(self, trial_id: int) -> bool:
        """Return whether a trial is of the study."""
        return any(each._trial_id == trial_id for each in self._rows.get_all_trials(self._id, deepcopy=False))

    def get_all_studies(self) -> list[FrozenStudy]:
        """Return the study; its attributes are read, and no other study's."""
        rows, id = self._rows, self._id
        return [
            FrozenStudy(
                study_name=rows.get_study_name_from_id(id),
                direction=None,
                directions=rows.get_study_directions(id),
                user_attrs=rows.get_study_user_attrs(id),
                system_attrs=rows.get_study_system_attrs(id),
                study_id=id,
            )
        ]

    def get_study_id_from_name(self, study_name: str) -> int:
        """Return the study's id, if the name is its own; KeyError if not."""
        if study_name != self._rows.get_study_name_from_id(self._id):
            raise KeyError(study_name)
        return self._id

    def get_all_trials(self, study_id: int, deepcopy: bool = True, states: Any = None) -> list[FrozenTrial]:
        """Return the study's trials; arguments as for ``BaseStorage.get_all_trials``."""
        if study_id != self._id:
            raise KeyError(study_id)
        return self._rows.get_all_trials(study_id, deepcopy=deepcopy, states=states)

    def remove_session(self) -> None:
        """Let go of this thread's connection."""
        self._rows.remove_session()


# Optuna takes nothing for a storage that is not called one.
BaseStorage.register(OneStudy)
