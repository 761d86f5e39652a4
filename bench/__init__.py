"""How fast it is, as ratios inside one run: `python -m bench`."""
