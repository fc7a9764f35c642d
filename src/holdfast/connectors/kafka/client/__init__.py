"""Talking to brokers beside librdkafka's producer: settings, rights, topics, offsets, transactions of others."""
