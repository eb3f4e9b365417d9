"""IncDSI: the vector of an added document by convex optimisation, exactly, over plain arrays."""
