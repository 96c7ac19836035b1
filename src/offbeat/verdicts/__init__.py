"""When a claim about algorithms holds: the statistical rule of docs/studies.md.

A claim says of pairs of arms that one is ahead of the other. It is judged by runs that are paired by seed:
`answers` asks the pairs each question with its p-values, `multiplicity` has the level of several looks and
claims.
"""
