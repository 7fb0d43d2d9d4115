"""The stepper on a running script: listens to the events as they arrive, and pauses the script."""
