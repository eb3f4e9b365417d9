"""How good a retriever is: metrics, significance, comparison with the baselines, reports and the
promotion gate.
"""
