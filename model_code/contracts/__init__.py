"""What each stage's output promises to those who read it: checked before it is in place, and again
by Dagster.
"""
