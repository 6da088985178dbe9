"""Files and forms that people write, read within bounds: jobs, clusters, queues."""
