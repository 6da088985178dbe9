"""Published data sets that no command of the product reads: their readers, and Megatron's memory."""
