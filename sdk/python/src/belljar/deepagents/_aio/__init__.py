"""The calls of `BelljarSandbox`."""
