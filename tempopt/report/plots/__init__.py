"""The plots of a study: each is a function from StudyResult to its data, and one from these to a figure.

``PLOTS`` has all of them by fixed keys. In a notebook: ``PLOTS["history"](result)``; its two steps are
``PLOTS["history"].data(result)`` and ``PLOTS["history"].figure(data)``. A plot without data raises
NothingToPlot with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping

from tempopt.report.plots.confirmation import paired_data, plot_paired
from tempopt.report.plots.constant import constant_data, plot_constant
from tempopt.report.plots.cost import cost_data, plot_cost
from tempopt.report.plots.entropy import entropy_data, plot_entropy
from tempopt.report.plots.history import curves_data, history_data, plot_curves, plot_history
from tempopt.report.plots.importance import importance_data, plot_importance
from tempopt.report.plots.landscape import landscape_data, plot_landscape
from tempopt.report.plots.schedule import plot_schedule, schedule_data
from tempopt.report.plots.style import Data, Plot, Table

PLOTS: Mapping[str, Plot] = {
    "differences": Plot(title="Fresh seeds, one by one", data=paired_data, figure=plot_paired),
    "schedule": Plot(title="The temperature over training", data=schedule_data, figure=plot_schedule),
    "history": Plot(title="Search history", data=history_data, figure=plot_history),
    "curves": Plot(title="Learning curves", data=curves_data, figure=plot_curves),
    "landscape": Plot(title="First and last temperature", data=landscape_data, figure=plot_landscape),
    "constant": Plot(title="Constant and learned temperatures", data=constant_data, figure=plot_constant),
    "importance": Plot(title="Importance of parameters", data=importance_data, figure=plot_importance),
    "cost": Plot(title="Cost by machine", data=cost_data, figure=plot_cost),
    "entropy": Plot(title="Attention entropy", data=entropy_data, figure=plot_entropy),
}
"""Every plot of a study by its key, in the order of the report."""

__all__ = ["PLOTS", "Data", "Plot", "Table"]
