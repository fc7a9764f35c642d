"""The Kafka sink: its options, its two modes, and what its transactions and marks are called."""
