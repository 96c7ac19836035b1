"""The second study: claims of the papers judged by fresh runs, one look, and a rule frozen before them.

`design.yaml` is the frozen design, `rule` judges claims, `judge` brings both to the rows, and `runs` makes
them: `python -m offbeat_papers.replication run`.
"""
