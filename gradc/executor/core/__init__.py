"""What of the executor knows no device: plans, how they run, what a device gives them, and the interpreter."""
