"""Pure decisions over frozen values: no I/O, no clock, no framework (NumPy is allowed).

The modules are ordered as a job walks through them; each imports only earlier ones:
units, errors, codec, job, hardware, model_shape, memory, marp, cluster, queue, has,
ledger, launch, telemetry, monitor, reschedule.
"""
