"""Use cases: each reads facts through ports, asks the core to decide, and commits the decision."""
