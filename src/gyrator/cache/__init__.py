"""Compiled graphs on disk: what identifies one (`key`), where it lies (`store`), what must hold again (`guards`)."""
