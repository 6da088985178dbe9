"""``frenzy doctor``: one question a check, one finding an answer, each with what to do."""
