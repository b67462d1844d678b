"""Chooses the cascades of a step, their degrees and their order."""
