"""The demo: a transformer in eager, gyrator and peers."""
