"""The pass: jobs in order, each with the plan that costs least of what is left, and the record of it."""
