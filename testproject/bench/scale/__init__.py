"""Beyond one machine: what bounds the pool, as formulas (``model``) and as a simulation (``simulate``) with measured ``constants``."""
