"""Asks PyTorch to put tensors of 2 MiB and more in huge pages, where the system lets a program ask for them.

A new tensor's memory comes page by page as it is first written; for a large model that takes several times
longer than the arithmetic on it. PyTorch reads this when it is imported: so this module comes before it.
`THP_MEM_ALLOC_ENABLE=0` in the environment keeps small pages.
"""

import os

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
