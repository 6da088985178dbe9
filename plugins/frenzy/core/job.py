"""The specification by its earlier name; new DAG files import it from ``frenzy``."""

from frenzy.core.values.job import *  # noqa: F403
