"""Long commands of `python -m gyrator`: doctor."""
