"""Lessons: programs with questions, which are answered in the stepper."""
