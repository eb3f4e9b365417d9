"""Kind `dense`: passage vectors of a fine-tuned encoder, for HCE, plain training and MLR."""
