"""What the gateway says of itself: counters, metrics, the admin port, logs."""
