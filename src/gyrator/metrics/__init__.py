"""What compilations are measured by: facts about kernels, and tables of them as CSV files."""
