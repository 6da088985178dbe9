"""Pure decisions over frozen values: no I/O, no clock, no framework (NumPy is allowed).

Folders, each importing only earlier ones: values, models, memory and capacity, planning and scheduling, runs,
lifecycle.
"""
