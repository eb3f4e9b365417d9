"""Checks that several contracts share: rules, tables, evaluations, models and indexes.

A contract consists of the conditions that the output of a stage must meet. The function `check` of
a stage calls these checks after `run`. They decide whether an output is accepted and never change
it. No stage lists them as code that it depends on, so a new rule does not make any stage run again.
"""
