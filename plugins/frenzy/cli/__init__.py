"""The ``frenzy`` command: one file for each verb, ``main`` puts them together.

Rule of this package: a verb reads its arguments, asks once, prints. Wrong input ends with the
field, its value and what is allowed, and exit status 2; a server that cannot be reached with a
sentence and a remedy, and 3; a run that failed with 1. A traceback is a bug.
"""
