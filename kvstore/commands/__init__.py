"""The sub-commands of `kvterrace` that a store's operator has: a file a command, wired up in kvstore/cli.py."""
