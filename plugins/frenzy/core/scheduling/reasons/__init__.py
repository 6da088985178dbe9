"""Why a job waits and what would help, read from the record of the pass that decided."""
