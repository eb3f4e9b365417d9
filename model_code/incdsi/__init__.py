"""IncDSI: the vector of an added document by convex optimisation, exactly, with a certificate; over plain arrays."""
