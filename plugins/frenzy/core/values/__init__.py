"""Jobs, GPUs, clusters, plans, queues and errors: frozen values and their rules; nothing is decided here."""
