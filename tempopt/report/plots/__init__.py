"""The plots of a study: for each a function from StudyResult to its data, and one from those to a figure.

``PLOTS`` has all of them under fixed keys. In a notebook: ``PLOTS["history"](result)``; or by hand:
``plot_history(history_data(result))``. Data that are not there raise NothingToPlot with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping

from tempopt.errors import NothingToPlot
from tempopt.report.plots.base import Data, Plot, Table
from tempopt.report.plots.comparison import (
    ComparedShown,
    VariantShown,
    compared_data,
    paired_data,
    plot_compared,
    plot_paired,
)
from tempopt.report.plots.confirmation import Comparison, Differences, differences_data, plot_differences
from tempopt.report.plots.cost import CostShown, Machine, cost_data, plot_cost
from tempopt.report.plots.entropy import (
    Entropies,
    HeadEntropies,
    entropy_data,
    heads_data,
    plot_entropy,
    plot_heads,
)
from tempopt.report.plots.history import HistoryShown, Trial, history_data, plot_history
from tempopt.report.plots.importance import Importances, importance_data, plot_importance
from tempopt.report.plots.inference import InferenceShown, ModelsShown, inference_data, plot_inference
from tempopt.report.plots.landscape import Landscape, landscape_data, plot_landscape
from tempopt.report.plots.learned import LearnedShown, learned_data, plot_learned
from tempopt.report.plots.maps import MapsShown, maps_data, plot_maps
from tempopt.report.plots.pruning import (
    ConfirmedRun,
    Pruned,
    PruningCheck,
    plot_pruned,
    plot_pruning_check,
    pruned_data,
    pruning_check_data,
)
from tempopt.report.plots.run import TrialCurve, plot_trial_curve, trial_curve_data
from tempopt.report.plots.schedules import (
    DepthShown,
    PlanShown,
    depth_data,
    plot_depth,
    plot_schedule,
    schedule_data,
)
from tempopt.report.plots.tried import Schedules, plot_schedules, schedules_data

PLOTS: Mapping[str, Plot] = {
    "differences": Plot(title="Fresh seeds, one by one", data=paired_data, figure=plot_paired),
    "inference": Plot(title="Temperature at inference", data=inference_data, figure=plot_inference),
    "schedule": Plot(title="Temperature over training", data=schedule_data, figure=plot_schedule),
    "depth": Plot(title="Temperature over training and depth", data=depth_data, figure=plot_depth),
    "learned": Plot(title="Learned temperatures", data=learned_data, figure=plot_learned),
    "history": Plot(title="Search history", data=history_data, figure=plot_history),
    "schedules": Plot(title="Every trial's schedule", data=schedules_data, figure=plot_schedules),
    "landscape": Plot(title="First against last temperature", data=landscape_data, figure=plot_landscape),
    "importance": Plot(title="What mattered", data=importance_data, figure=plot_importance),
    "entropy": Plot(title="Attention entropy by layer", data=entropy_data, figure=plot_entropy),
    "heads": Plot(title="Attention entropy by head", data=heads_data, figure=plot_heads),
    "maps": Plot(title="What heads attend to", data=maps_data, figure=plot_maps),
    "pruned": Plot(title="What was pruned", data=pruned_data, figure=plot_pruned),
    "pruning_check": Plot(
        title="Would the winner have been pruned?", data=pruning_check_data, figure=plot_pruning_check
    ),
    "cost": Plot(title="Cost by machine", data=cost_data, figure=plot_cost),
}
"""Every plot of a study by its key, in the order of the report."""

__all__ = [
    "PLOTS",
    "ComparedShown",
    "Comparison",
    "ConfirmedRun",
    "CostShown",
    "Data",
    "DepthShown",
    "Differences",
    "Entropies",
    "HeadEntropies",
    "HistoryShown",
    "Importances",
    "InferenceShown",
    "Landscape",
    "LearnedShown",
    "Machine",
    "MapsShown",
    "ModelsShown",
    "NothingToPlot",
    "PlanShown",
    "Plot",
    "Pruned",
    "PruningCheck",
    "Schedules",
    "Table",
    "Trial",
    "TrialCurve",
    "VariantShown",
    "compared_data",
    "cost_data",
    "depth_data",
    "differences_data",
    "entropy_data",
    "heads_data",
    "history_data",
    "importance_data",
    "inference_data",
    "landscape_data",
    "learned_data",
    "maps_data",
    "paired_data",
    "plot_compared",
    "plot_cost",
    "plot_depth",
    "plot_differences",
    "plot_entropy",
    "plot_heads",
    "plot_history",
    "plot_importance",
    "plot_inference",
    "plot_landscape",
    "plot_learned",
    "plot_maps",
    "plot_paired",
    "plot_pruned",
    "plot_pruning_check",
    "plot_schedule",
    "plot_schedules",
    "plot_trial_curve",
    "pruned_data",
    "pruning_check_data",
    "schedule_data",
    "schedules_data",
    "trial_curve_data",
]
