"""Long vectors: a pool of reusable memory, arithmetic in chunks on every core, the allocator's settings.

This file imports nothing: `allocator` comes before PyTorch.
"""
