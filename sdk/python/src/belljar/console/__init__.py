"""The commands `langgraph-sandbox` and `sandbox-setup`."""
