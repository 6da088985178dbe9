"""``python -m frenzy.trainer.measure``: predicted against measured memory."""
