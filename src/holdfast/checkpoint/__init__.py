"""What makes a decision durable."""
