"""Studies: models, analyses and reports put together."""
