"""MLR: documents represented by several encoder layers, for dense retrievers with `layers`.

Source: Multi-layer Representations for retrieval (MLR), sections 3.1 to 3.3. `settings` chooses the
layers, `losses` compares them in training, and `training` plugs both into the dense trainer. The
encoder itself only offers `layers_forward`, and the attribute `layers` for the index.
"""
