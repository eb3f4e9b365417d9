"""IncDSI: find the vector of an added document by convex optimisation, without training."""
