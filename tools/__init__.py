"""What develops the package and is no part of it: run from a checkout, never installed.

Each folder is a tool of its own that imports the package and no other tool.
"""
