"""The plots of a study: for each a function from StudyResult to its data, and one from those to a figure.

``PLOTS`` has all of them under fixed keys. In a notebook: ``PLOTS["history"](result)``; or by hand:
``plot_history(history_data(result))``. A plot without data raises NothingToPlot with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping

from tempopt.errors import NothingToPlot
from tempopt.report.plots.confirmation import (
    ComparedShown,
    ComparisonData,
    Differences,
    VariantShown,
    compared_data,
    differences_data,
    paired_data,
    plot_compared,
    plot_differences,
    plot_paired,
)
from tempopt.report.plots.constant import (
    ConstantAndLearned,
    LearnedPath,
    ModelsShown,
    constant_data,
    plot_constant,
)
from tempopt.report.plots.cost import CostShown, MachineCost, cost_data, plot_cost
from tempopt.report.plots.entropy import EntropyData, entropy_data, plot_entropy
from tempopt.report.plots.history import (
    CurvesData,
    HistoryData,
    Trial,
    curves_data,
    history_data,
    plot_curves,
    plot_history,
)
from tempopt.report.plots.importance import Importances, importance_data, plot_importance
from tempopt.report.plots.landscape import Landscape, landscape_data, plot_landscape
from tempopt.report.plots.schedule import PlanShown, plot_schedule, schedule_data
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

__all__ = [
    "PLOTS",
    "ComparedShown",
    "ComparisonData",
    "ConstantAndLearned",
    "CostShown",
    "CurvesData",
    "Data",
    "Differences",
    "EntropyData",
    "HistoryData",
    "Importances",
    "Landscape",
    "LearnedPath",
    "MachineCost",
    "ModelsShown",
    "NothingToPlot",
    "PlanShown",
    "Plot",
    "Table",
    "Trial",
    "VariantShown",
    "compared_data",
    "constant_data",
    "cost_data",
    "curves_data",
    "differences_data",
    "entropy_data",
    "history_data",
    "importance_data",
    "landscape_data",
    "paired_data",
    "plot_compared",
    "plot_constant",
    "plot_cost",
    "plot_curves",
    "plot_differences",
    "plot_entropy",
    "plot_history",
    "plot_importance",
    "plot_landscape",
    "plot_paired",
    "plot_schedule",
    "schedule_data",
]
