"""The simulator: the product's own decisions on recorded arrivals."""
