"""Results of a study: decision, findings, export, the report page, plots and Optuna's dashboard."""
