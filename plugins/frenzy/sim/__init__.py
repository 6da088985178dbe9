"""The simulator: the product's own ``schedule()``, and rivals, on recorded arrivals."""
