"""Compiled graphs on disk: what identifies one and must hold again (`key`), where it lies (`store`, `remote`)."""
