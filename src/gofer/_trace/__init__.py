"""Reading traces, and showing them. Only gofer.trace is public."""
