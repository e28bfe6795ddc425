"""Bench: a quick look at what this machine gives kvterrace, each figure beside its physical limit in the same run. Not
a benchmark of models or of a deployment."""
