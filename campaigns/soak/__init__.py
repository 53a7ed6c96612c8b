"""Many rounds of a live network: memory, open files and threads must not grow."""
