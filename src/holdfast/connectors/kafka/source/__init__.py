"""The manners of Spark's Kafka source: where it starts, and how far its group has got."""
