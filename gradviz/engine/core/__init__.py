"""Tensors, nodes, ops and passes: how a graph is recorded, and how it is differentiated."""
