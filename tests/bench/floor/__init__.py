"""Floors: the least work an operation needs here, with none of persist's code."""
