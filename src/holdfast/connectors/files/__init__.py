"""Files: Parquet, JSON lines and CSV, rolled over many checkpoints."""
