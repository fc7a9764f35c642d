"""What a pipeline tells other systems: metrics, lineage, traces. All of it is read from files, beside the rows' way."""
