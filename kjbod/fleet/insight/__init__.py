"""What the pipeline knows: figures, scores and forecasts from the gold tables of a lake."""
