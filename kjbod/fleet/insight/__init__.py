"""Figures, scores and forecasts from the gold tables of a lake."""
