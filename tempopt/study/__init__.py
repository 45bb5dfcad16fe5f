"""What a study is: its spec, its agent, its proof and its result; the only room that speaks to Optuna."""
