"""Commands that come with the package: `langgraph-sandbox` and `sandbox-setup`."""
