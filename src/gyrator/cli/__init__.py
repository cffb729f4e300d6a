"""What `python -m gyrator` does: demo, doctor, bench, bisect, cache."""
