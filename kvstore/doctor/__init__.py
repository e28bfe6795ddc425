"""Doctor: what stands in the way of kvterrace on this machine and in a deployment, and what to do about it."""
