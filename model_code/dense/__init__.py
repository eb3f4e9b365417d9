"""The dense kind of retriever: contrastive, HCE and MLR."""
