"""Figures, pages and pictures of simulations."""
