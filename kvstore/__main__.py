"""`python -m kvterrace.kvstore`: the same program as `kvterrace`."""

from .cli import main

main()
