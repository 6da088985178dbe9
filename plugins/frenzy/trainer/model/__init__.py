"""The model: built, loaded, adapted, quantised, exported."""
