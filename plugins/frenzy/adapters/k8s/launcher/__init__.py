"""Attempts as pods: the manifest, the launch, and how each of them ended."""
