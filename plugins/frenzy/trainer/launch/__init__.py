"""``python -m frenzy.trainer.launch``: starts a node's ranks, watches them, reports how they ended."""
