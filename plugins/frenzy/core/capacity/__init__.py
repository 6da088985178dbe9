"""What a cluster, and the quotas and shares of its queues, have and leave free; where in it a plan goes."""
