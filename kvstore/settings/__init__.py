"""The options of `kvterrace serve`, by noun. Each is a mixin of config.ServeConfig."""
