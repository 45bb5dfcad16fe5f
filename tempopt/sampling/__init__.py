"""Which parameters a trial tries and when it is pruned. Decides on rows; knows neither store nor agent."""
