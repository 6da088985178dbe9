"""Judging the predictors by runs that others measured. Imports wiring and what lies below; prints nothing."""
