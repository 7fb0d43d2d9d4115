"""The stepper on a running script: it listens to the events as they arrive, and pauses the script where it should."""
