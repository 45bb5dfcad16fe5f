"""What is shown of a study beside the terminal: plots, one page to send on, and Optuna's dashboard."""
