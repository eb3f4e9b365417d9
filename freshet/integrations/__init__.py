"""Freshet inside other frameworks; each needs its extra, such as `pip install freshet[langchain]`."""
