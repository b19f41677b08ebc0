"""Models: own ones built on one attention core, with TransformerLens' hook names."""
