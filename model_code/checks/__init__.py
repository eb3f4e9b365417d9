"""Checks that several contracts share: rules, tables, evaluations, models and indexes.

A stage's `check` calls them after `run`. They decide whether an output is published, never what is
in it. No stage lists them as code that it depends on: a new rule does not run any stage again.
"""
