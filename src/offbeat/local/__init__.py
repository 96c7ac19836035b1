"""The client's side: what it minimises, how it trains, with PyTorch."""
