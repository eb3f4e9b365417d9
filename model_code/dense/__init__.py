"""Kind `dense`: vectors of passages from a fine-tuned encoder, for HCE, contrastive training and MLR."""
