"""The ledger in a database, with its migrations."""
